//! Questions and reports of charging to the policies of a tree of groups, passed on to each of
//! them.

use crate::counter::at_limit;
use crate::counter::handle::Handle;
use crate::counter::object::Object;
use crate::counter::object::tree::{LookFinding, Policies, StockMove};
use crate::counter::object::{Counter, Incarnation};
use crate::hierarchy::group_tree::GroupTree;
use crate::hierarchy::service::{ScheduledLevels, schedule};
use crate::hierarchy::{events, stats};
use crate::lifecycle::create;
use crate::pressure::{barging, pressure_levels, service};
use crate::reclaim::excess;
use crate::stat::StatKey;
use crate::state::events::Event;
use crate::thread::context;
use crate::thread::slow_path::{Entered, Outermost};

impl Policies for GroupTree {
    fn may_barge(&self, counter: &Counter, n: u64) -> bool {
        barging::may_barge(counter, n)
    }

    fn barge_undone(&self, counter: &Counter, n: u64) {
        barging::undo_barge(counter, n);
    }

    fn above_max(&self, counter: &Counter) {
        // An observed max lets through what it would have refused: the event of a refusal is
        // counted all the same. A max that acts is passed by force only.
        if counter.is_observed() {
            events::count(counter, Event::Max);
            events::count(counter, Event::Observed);
        } else {
            events::count(counter, Event::Overcharge);
        }
    }

    fn underflowed(&self, counter: &Counter) {
        events::count(counter, Event::Underflow);
    }

    fn usage_moved(&self, counter: &Counter, found: LookFinding) {
        // The level is served at the end of the slow path, outside of all locks. A call that runs
        // no foreign code starts no thread to count credit, either; nor does a walk while the last
        // count's pause lasts.
        let counts_credit = found.may_be_credit
            && !context::leaves_foreign()
            && !pressure_levels::is_in_pause(counter);
        if found.serves_line || found.is_to_reclaim || counts_credit {
            schedule(counter);
        }
        if found.crosses_soft {
            excess::cross(counter);
        }
        if found.moves_pressure {
            pressure_levels::correct(counter);
        }
    }

    fn look_again(&self, counter: &'static Object) {
        let counter = Handle::adopt(counter);
        let entered = Entered::enter();
        if let Some(thread) = entered.outermost() {
            at_limit::look_again(&counter, thread);
        }
        drop(entered);
    }

    fn server(&self) -> fn(*const ()) {
        service::serve
    }

    fn leaver(&self) -> fn(*const ()) {
        |scheduled| drop(ScheduledLevels::new(scheduled))
    }

    fn release_object(&self, group: &Counter) -> Option<Incarnation> {
        let parent = group.parent().map(|parent| Handle::adopt(parent.object()));
        let incarnation = create::release_object(group.tree(), self, group);
        // The parent may be what keeps the tree.
        // Mutation: e15-runtime-keeps-its-parents
        drop(parent);
        incarnation
    }

    fn stock_moved(&self, counter: &Counter, outermost: &Outermost, moved: StockMove) {
        let stat = match moved {
            StockMove::Refill => StatKey::STOCK_REFILL,
            StockMove::Return => StatKey::STOCK_RETURN,
        };
        stats::count(counter, outermost, stat);
    }
}
