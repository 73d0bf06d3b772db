//! A counter joins a tree: an object of the pool begins an incarnation and is linked below its
//! parent.

use crate::counter::config::CounterConfig;
use crate::counter::handle::Handle;
use crate::counter::links::NameHash;
use crate::counter::make;
use crate::counter::object::tree::{OfTree, Tree};
use crate::counter::object::{Counter, CounterRef, Incarnation, Object, SHARE_OF_MAX};
use crate::counter::slow_path::SlowPath;
use crate::counter::spare_word::Cover;
use crate::counter::stocks::CloseScope;
use crate::error::CounterId;
use crate::sync::Arc;
use crate::thread::ids::next_id;

/// What an incarnation begins with.
pub(crate) struct CounterInit {
    pub(crate) tree: OfTree,
    pub(crate) parent: Option<CounterRef>,
    pub(crate) batch: u64,
    pub(crate) max: u64,
    pub(crate) budget: Option<u64>,
    pub(crate) covers: bool,
}

impl CounterInit {
    pub(crate) fn root(tree: &Arc<Tree>, config: &CounterConfig) -> Self {
        let &CounterConfig {
            batch, max, budget, ..
        } = config;
        CounterInit {
            tree: OfTree::root(tree),
            parent: None,
            batch,
            max,
            budget,
            covers: false,
        }
    }

    #[allow(unsafe_code)]
    pub(crate) fn below(parent: &Counter) -> Self {
        let tree = parent.incarnation().tree.below();
        // SAFETY: a group is linked with a handle on its parent, and gives it up with its
        // incarnation; before that the thread that creates it keeps the parent.
        let kept = unsafe { CounterRef::new(parent) };
        // A group that is created below one that covers does so, too.
        let covers = parent.cover().is_some();
        CounterInit {
            tree,
            parent: Some(kept),
            batch: parent.batch(),
            max: u64::MAX,
            budget: None,
            covers,
        }
    }
}

/// The root of a new tree of bare counters.
pub(crate) fn bare_root(config: &CounterConfig) -> Handle {
    let tree = Tree::new(config.clone(), make::counter_cache(), None);
    join(&tree, CounterInit::root(&tree, config))
}

/// A new counter below `parent`, with the batch of `parent`.
pub(crate) fn child(parent: &Counter) -> Handle {
    join(parent.tree(), CounterInit::below(parent))
}

/// Makes a bare counter and links it without a name: nobody looks it up.
fn join(tree: &Tree, init: CounterInit) -> Handle {
    let counter = make::take(tree).unwrap_or_else(|refused| refused.abort());
    start(tree, counter, init);
    let counter = Handle::adopt(counter);
    let first = tree
        .hierarchy
        .lock_for(&counter, NameHash::of_unnamed(&counter))
        .link(&counter, false);
    finish_join(tree, &counter, first == Some(true));
    counter
}

/// Begins an incarnation. Only the caller sees the counter yet.
pub(crate) fn start(tree: &Tree, counter: &Object, init: CounterInit) {
    let fenced = tree.barrier.fenced;
    let incarnation = Incarnation {
        id: CounterId(next_id()),
        tree: init.tree,
        parent: init.parent,
        covers: init.covers,
        cover: Cover::default(),
        slow_only: fenced || tree.config.audit,
        fenced,
        // The largest value says that the budget is a part of max, so no configured one may be as
        // large.
        budget: init
            .budget
            .map_or(SHARE_OF_MAX, |budget| budget.min(SHARE_OF_MAX - 1)),
    };
    counter.begin(incarnation, init.batch, init.max);
}

/// Completes a counter that was linked, as its parent's `first` child or not. The creator's handle
/// keeps it, even if another thread takes it offline at once.
pub(crate) fn finish_join(tree: &Tree, group: &Counter, first: bool) {
    // Stocks that adapt open by themselves, and only the first child concerns the stock of the
    // parent: most creations need no lock of the tree.
    if !first && tree.config.adaptive {
        return;
    }
    let path = SlowPath::enter();
    let mut stocks = tree.lock(&path);
    if let Some(parent) = group.parent().filter(|_| first) {
        // A parent that is charged itself opens its stock again. One without credit is left as it
        // is: to close a stock takes a barrier.
        let may_have_credit =
            |counter: &&Counter| counter.touched() > 0 || counter.is_open_central();
        for counter in parent.group().filter(may_have_credit) {
            let _ = tree.close(&mut stocks, counter, CloseScope::Own);
            tree.open_at_start(&mut stocks, counter);
        }
    }
    group
        .group()
        .for_each(|counter| tree.open_at_start(&mut stocks, counter));
}
