//! Bytes that go from thread to thread: what one gives back is credit of the group, and the next
//! charge takes it.
//!
//! * here: small trees near a limit; `credit`: what is kept and what is dropped; `bounds`: how
//!   much;
//! * `drained`: what takes the credit home; `limits`: above a limit nothing is kept; `line`: nor
//!   while a charge waits;
//! * `neighbours`: what others see of it; `idle`: credit that does not move; `offline`: groups that
//!   come and go;
//! * `threads`: a batch that shrinks beside puts.

mod bounds;
mod credit;
mod drained;
mod idle;
mod limits;
mod line;
mod neighbours;
mod offline;
mod threads;

use memcg::CentralStock;
use memcg::barrier::BarrierMode;
use memcg::{Bytes, Charge, Group, Runtime, RuntimeBuilder};

pub(crate) use crate::support::trees::{LeftEmpty, build, create, limited};

/// Far below one batch: the stocks of threads stay closed.
pub(crate) const MAX: u64 = 1_000;

/// Puts that go up the tree after a close.
pub(crate) const PUTS_WHILE_CLOSED: usize = 8;

pub(crate) fn audited() -> RuntimeBuilder {
    Runtime::builder().audit(true)
}

/// With and without an audit and the barrier pair.
pub(crate) fn kinds() -> [RuntimeBuilder; 3] {
    [
        audited(),
        Runtime::builder(),
        audited().barrier(BarrierMode::Fence),
    ]
}

/// A group with a central stock below a parent that has the max. Afterwards all charges have come
/// back.
pub(crate) struct Scene {
    pub(crate) stock: CentralStock,
    pub(crate) queue: Group,
    pub(crate) parent: Group,
    pub(crate) runtime: LeftEmpty,
}

impl Scene {
    /// The stock opens with its next put, where there is a batch.
    #[track_caller]
    pub(crate) fn of(builder: RuntimeBuilder) -> Scene {
        let runtime = left_empty(build(builder));
        let parent = limited(&runtime.root(), "parent", MAX);
        let queue = create(&parent, "queue");
        let stock = CentralStock::of(&queue);
        open(&stock);
        Scene {
            stock,
            queue,
            parent,
            runtime,
        }
    }

    #[track_caller]
    pub(crate) fn new() -> Scene {
        Scene::of(audited())
    }

    /// With so much credit.
    #[track_caller]
    pub(crate) fn with_credit(bytes: u64) -> Scene {
        let scene = Scene::new();
        fill(&scene.stock, bytes);
        scene
    }

    /// Usage and live of the group and of its parent, and the credit.
    pub(crate) fn figures(&self) -> [u64; 5] {
        let Scene {
            parent,
            queue,
            stock,
            ..
        } = self;
        [
            queue.usage(),
            queue.live(),
            parent.usage(),
            parent.live(),
            stock.credit(),
        ]
    }
}

/// Tells if a stock without credit opens, which may take some puts that go up the tree. It is
/// closed afterwards, and opens with its next put.
#[track_caller]
pub(crate) fn open(stock: &CentralStock) -> bool {
    let opens = (0..=PUTS_WHILE_CLOSED).any(|_| is_kept(stock));
    stock.release_credit();
    opens
}

/// Takes `bytes`, which fit.
#[track_caller]
pub(crate) fn take(stock: &CentralStock, bytes: u64) -> Charge {
    stock
        .charge_if_room(Bytes(bytes))
        .unwrap_or_else(|| panic!("{bytes} fit: {stock:?}"))
}

/// Charges `bytes` and gives them back: they are credit.
#[track_caller]
pub(crate) fn fill(stock: &CentralStock, bytes: u64) {
    let before = stock.credit();
    stock.give_back(take(stock, bytes));
    let more = if bytes > before { bytes } else { 0 };
    assert_eq!(stock.credit(), before + more, "kept");
}

/// Charges a byte and gives it back; whether it was kept.
#[track_caller]
pub(crate) fn is_kept(stock: &CentralStock) -> bool {
    let before = stock.credit();
    assert_eq!(before, 0, "the byte comes from the tree");
    stock.give_back(take(stock, 1));
    stock.credit() == 1
}

/// After a close: so many go up the tree, then one is kept.
#[track_caller]
pub(crate) fn assert_opens_after_eight(stock: &CentralStock) {
    let kept: Vec<bool> = (0..=PUTS_WHILE_CLOSED).map(|_| is_kept(stock)).collect();
    assert_eq!(
        kept,
        (0..=PUTS_WHILE_CLOSED)
            .map(|put| put == PUTS_WHILE_CLOSED)
            .collect::<Vec<_>>()
    );
}

/// The tree adds up at each level, with credit inside.
#[track_caller]
pub(crate) fn assert_adds_up(runtime: &Runtime) {
    let verdict = runtime.verify();
    assert!(verdict.is_ok(), "{verdict}");
    let root = runtime.root();
    for group in root.inspect().descendants().chain([root.clone()]) {
        assert_eq!(
            group.usage(),
            group.live() + group.memory().stocked(),
            "{}",
            group.path()
        );
        assert!(
            group.memory().stocked() <= group.memory().stocked_bound(),
            "{}",
            group.path()
        );
    }
    let counts = runtime.counts();
    assert_eq!(
        (counts.underflows, counts.overflows, counts.discarded),
        (0, 0, 0)
    );
}

/// No charge is left: neither usage nor a group, once the credit is home.
#[track_caller]
pub(crate) fn assert_empty(runtime: &Runtime) {
    assert_adds_up(runtime);
    let root = runtime.root();
    root.children().iter().for_each(Group::offline_tree);
    runtime.settle();
    root.memory().drain();
    assert_eq!(
        (
            root.usage(),
            root.forced(),
            runtime.dying_count(),
            root.memory().stocked_bound()
        ),
        (0, 0, 0, 0)
    );
    assert_adds_up(runtime);
}

pub(crate) fn left_empty(runtime: Runtime) -> LeftEmpty {
    LeftEmpty::by(assert_empty, runtime)
}
