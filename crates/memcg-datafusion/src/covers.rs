//! Covers: where an allocator of the process charges groups, a pool's reservations pay for what its queries allocate.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use memcg::{Group, GroupId, RawCover, Runtime};

/// An object that each allocator which charges groups owns.
const OBJECT: usize = 64 << 10;

/// The covers of the process's pools.
static COVERS: Mutex<Option<HashMap<GroupId, Weak<RawCover>>>> = Mutex::new(None);

/// The lock is never held over a call of another crate's code but the map's.
fn covers() -> MutexGuard<'static, Option<HashMap<GroupId, Weak<RawCover>>>> {
    COVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the process's allocator charges groups: it is asked once, with a group of a runtime of its own.
pub(crate) fn an_allocator_charges() -> bool {
    static CHARGES: OnceLock<bool> = OnceLock::new();
    *CHARGES.get_or_init(|| {
        Runtime::builder().build().is_ok_and(|runtime| {
            let root = runtime.root();
            let object = root.run(|| black_box(vec![0_u8; OBJECT]));
            let charges = root.allocated_local() > 0;
            drop(object);
            charges
        })
    })
}

/// The cover of a group's pools; `None` where no allocator charges groups.
pub(crate) fn cover_of(group: &Group) -> Option<Arc<RawCover>> {
    if !an_allocator_charges() {
        return None;
    }
    let new = Arc::new(group.raw_cover());
    let mut covers = covers();
    let covers = covers.get_or_insert_default();
    let known = covers.get(&group.id()).and_then(Weak::upgrade);
    let cover = known.unwrap_or_else(|| {
        covers.retain(|_, cover| cover.strong_count() > 0);
        covers.insert(group.id(), Arc::downgrade(&new));
        Arc::clone(&new)
    });
    Some(cover)
}

/// Where work runs: in a group, and under its cover where there is one.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    group: Group,
    cover: Option<Arc<RawCover>>,
}

impl Scope {
    pub(crate) fn new(group: Group, cover: Option<Arc<RawCover>>) -> Scope {
        Scope { group, cover }
    }

    /// The scope that the thread is in, of a pool's group or of any other.
    #[cfg(feature = "session")]
    pub(crate) fn current() -> Option<Scope> {
        let group = Group::current()?;
        let cover = covers().as_ref().and_then(|covers| covers.get(&group.id())).and_then(Weak::upgrade);
        Some(Scope { group, cover })
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn cover(&self) -> Option<&Arc<RawCover>> {
        self.cover.as_ref()
    }

    #[inline]
    pub(crate) fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        match &self.cover {
            Some(cover) => cover.run(work),
            None => self.group.run(work),
        }
    }
}
