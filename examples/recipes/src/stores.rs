//! fjall: one budget over several stores.
//!
//! A store's write buffer may be as large as there is room. If another store lacks room, the tree
//! asks for it back, and the store writes its buffer to disk. fjall's block cache has the size that
//! it was opened with, so it is charged as a whole.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fjall::{Database, Keyspace, KeyspaceCreateOptions};
use memcg::{Charge, ChargeError, Group, Reclaim, ReclaimContext, ReclaimPriority, Registration};

/// fjall's own bytes for an entry, beside its key and its value.
const ENTRY: usize = 64;

/// Why a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no room.
    #[error(transparent)]
    Refused(#[from] ChargeError),
    /// The database failed.
    #[error(transparent)]
    Fjall(#[from] fjall::Error),
}

/// One of several stores.
pub struct Store {
    shared: Arc<Shared>,
    _asked: Registration,
}

struct Shared {
    database: Database,
    entries: Keyspace,
    group: Group,
    /// The write buffer's.
    buffered: Mutex<Charge>,
    /// The block cache's.
    _cache: Charge,
}

impl Store {
    /// Opens a store of a group.
    pub fn open(folder: &Path, group: &Group, cache: usize) -> Result<Store, StoreError> {
        let charge = group.charge(cache)?;
        let database = Database::builder(folder).cache_size(cache as u64).open()?;
        // The tree says when to write: this is the most for one buffer.
        let options = || KeyspaceCreateOptions::default().max_memtable_size(1 << 30);
        let entries = database.keyspace("entries", options)?;
        let buffered = Mutex::new(group.force_charge(database.write_buffer_size() as usize));
        let shared = Arc::new(Shared {
            database,
            entries,
            group: group.clone(),
            buffered,
            _cache: charge,
        });
        let asked = group.register_reclaimer(shared.clone(), ReclaimPriority::NORMAL);
        Ok(Store {
            shared,
            _asked: asked,
        })
    }

    /// Blocks as `Group::charge` does: if there is no room, other stores write to disk, or this
    /// one.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        // Without the lock: the tree may ask this store.
        let charge = self.shared.group.charge(key.len() + value.len() + ENTRY)?;
        self.shared.entries.insert(key, value)?;
        self.shared.buffered().merge(charge).expect("one group");
        Ok(())
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.shared.entries.get(key)?.map(|value| value.to_vec()))
    }

    /// Bytes of the write buffer, as fjall counts them.
    pub fn buffered(&self) -> u64 {
        self.shared.database.write_buffer_size()
    }
}

impl Shared {
    fn buffered(&self) -> MutexGuard<'_, Charge> {
        self.buffered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reclaim for Shared {
    fn reclaim(&self, _: u64, _: &ReclaimContext<'_>) -> u64 {
        // A buffer is written as a whole. Entries that come from now on stay charged.
        let written = self.buffered().take();
        if self.entries.rotate_memtable_and_wait().is_err() {
            self.buffered().merge(written).expect("one group");
            return 0;
        }
        written.bytes()
    }
}
