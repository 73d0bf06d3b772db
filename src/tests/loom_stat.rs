//! Statistics: no addition is lost or counted twice while other threads list, flush, unlist or
//! release; and what a read claims about its error holds.

use super::common::{end, group};
use super::{beside, build, large_model_without_pair, model, model_without_pair, race, with_group};
use crate::group::Group;
use crate::hierarchy::stats;
use crate::stat::published::StatScope;
use crate::{Freshness, Runtime, RuntimeBuilder, StatKey};

/// Counted one by one.
const EVENT: StatKey = StatKey::WORKINGSET_REFAULT;

/// No stock; a thread may write two grains without announcing them.
pub(super) fn bare() -> RuntimeBuilder {
    super::loom_lifecycle::bare().stat_batch(4)
}

/// A runtime whose root has one addition, which is published.
fn published() -> (Runtime, Group) {
    let (runtime, root) = build(bare());
    root.stat_add(EVENT, 1);
    root.inspect().flush();
    (runtime, root)
}

/// A stale read is no further off than it says, of two additions.
fn assert_bounded(root: &Group, stat: StatKey) {
    let read = root.read(Freshness::Stale);
    let missing = 2_i64.abs_diff(read.get(stat));
    assert!(
        missing <= read.max_error(),
        "{missing} missing, at most {}",
        read.max_error()
    );
}

fn exact(group: &Group) -> i64 {
    group.read(Freshness::Exact).get(EVENT)
}

/// Flush as the flusher does, which unlists idle cells.
fn tidy(root: &Group) {
    stats::flush_periodic(root.first());
}

/// E42. A reader that finds the first figures of a group finds them made.
#[test]
fn loom_first_write_vs_read() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        race(
            root.clone(),
            |root| {
                assert_eq!(
                    root.read(Freshness::Stale).get(EVENT),
                    0,
                    "no thread has flushed"
                )
            },
            || root.stat_add(EVENT, 1),
        );
        assert_eq!(exact(&root), 1);
    });
}

/// E17. A thread adds while its cells are unlisted: the flusher reads the count behind the barrier,
/// or the thread lists its cells again.
#[test]
fn loom_add_vs_unlist() {
    model(|| {
        let (_runtime, root) = published();
        race(root.clone(), |root| tidy(&root), || root.stat_add(EVENT, 1));
        assert_eq!(exact(&root), 2, "what was written is read");
        root.stat_add(EVENT, 1);
        assert_eq!(exact(&root), 3, "and what is written from here on");
    });
}

/// E17. The owner pushes its cells again, and another flush takes them, before the unlisting goes
/// on.
#[test]
fn loom_add_vs_unlist_vs_flush() {
    model(|| {
        let (_runtime, root) = published();
        let flusher = beside(root.clone(), |root| tidy(&root));
        root.stat_add(EVENT, 1);
        root.inspect().flush();
        flusher.join().unwrap();
        root.stat_add(EVENT, 1);
        assert_eq!(exact(&root), 3);
    });
}

/// E17. A thread marks its cells before it pushes them: between the two a flush may take and unlist
/// them.
#[test]
fn loom_listing_vs_unlist() {
    model(|| {
        let (_runtime, root) = published();
        tidy(&root);
        let flush = |root: Group| {
            root.inspect().flush();
            tidy(&root);
        };
        race(root.clone(), flush, || root.stat_add(EVENT, 1));
        root.stat_add(EVENT, 1);
        assert_eq!(exact(&root), 3);
    });
}

/// E18. Two threads list their cells while a third takes the stack.
#[test]
fn loom_listing_vs_take_over() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let writers = [(); 2].map(|()| beside(root.clone(), |root| root.stat_add(EVENT, 1)));
        root.inspect().flush();
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        assert_eq!(exact(&root), 2);
    });
}

/// E22. A reader that sees a figure of a child sees those of its parents.
#[test]
fn loom_parent_never_below_child() {
    model_without_pair(|| {
        let (runtime, child) = with_group(bare(), "child");
        child.stat_add(EVENT, 1);
        child.inspect().flush();
        child.stat_add(EVENT, 1);
        let flusher = beside(child.clone(), |child| child.inspect().flush());
        let published = |group: &Group| {
            stats::published(group.first(), StatScope::Group)
                .expect("written")
                .figures(EVENT.number())[0]
        };
        let below = published(&child);
        let above = published(&runtime.root());
        assert!(above >= below, "{above} above, {below} below");
        flusher.join().unwrap();
    });
}

/// E41. A thread raises a gauge in a child, which a flush reads first, and lowers it in the root,
/// which is read last: an exact read may show a figure that the gauge never had, and its error says
/// so.
#[test]
fn loom_exact_read_vs_gauge() {
    model_without_pair(|| {
        let (runtime, child) = with_group(bare(), "child");
        child.stat_add(EVENT, 1);
        runtime.root().stat_add(EVENT, 1);
        runtime.root().inspect().flush();
        let reader = beside(runtime.root(), |root| root.read(Freshness::Exact));
        child.stat_add(EVENT, 1);
        runtime.root().stat_add(EVENT, -1);
        let read = reader.join().unwrap();
        let found = read.get(EVENT);
        let error = read.max_error().cast_signed();
        assert!(
            found - error <= 3 && found + error >= 2,
            "a gauge of 2 or 3: {found}, at most {error} off"
        );
        let quiet = runtime.root().read(Freshness::Exact);
        assert_eq!((quiet.get(EVENT), quiet.max_error()), (2, 0));
    });
}

/// E41. Figures that are read after the count contain all that it counts as published.
#[test]
fn loom_counted_vs_published() {
    model_without_pair(|| {
        let (_runtime, root) = published();
        root.stat_add(EVENT, 1);
        let flusher = beside(root.clone(), |root| root.inspect().flush());
        let published = stats::published(root.first(), StatScope::Group).expect("written");
        let counted = published.counted();
        let [figure, _] = published.figures(EVENT.number());
        assert!(
            figure.cast_unsigned() >= counted,
            "{counted} counted, {figure} published"
        );
        flusher.join().unwrap();
    });
}

/// E19. Two readers that ask at once share a flush: what each wrote before it asked is in what it
/// reads.
#[test]
fn loom_two_readers_share_a_flush() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        root.stat_add(EVENT, 1);
        let reader = beside(root.clone(), |root| {
            root.stat_add(EVENT, 1);
            exact(&root)
        });
        assert!(exact(&root) >= 1);
        let read = reader.join().unwrap();
        assert_eq!(read, 2, "its own, and what was there before it began");
        assert_eq!(exact(&root), 2);
    });
}

/// E18, E19. A reader lists its cells and asks while another flush begins: what it wrote is in the
/// flush that it shares.
#[test]
fn loom_listing_vs_shared_flush() {
    model_without_pair(|| {
        // Cells that are there and unlisted: to list them takes no lock.
        let (_runtime, root) = published();
        tidy(&root);
        let flusher = beside(root.clone(), |root| root.inspect().flush());
        root.stat_add(EVENT, 1);
        assert_eq!(exact(&root), 2, "what this thread wrote before it asked");
        flusher.join().unwrap();
    });
}

/// E20, E21. A stale read is no further off than it says, while a flush takes grains off the bound.
#[test]
fn loom_bound_vs_flush() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare().stat_batch(0));
        root.stat_add(EVENT, 1);
        let flusher = beside(root.clone(), |root| root.inspect().flush());
        root.stat_add(EVENT, 1);
        assert_bounded(&root, EVENT);
        flusher.join().unwrap();
    });
}

/// E20. A flush takes no grains off the bound before they were added: an announcement that is under
/// way while its cells are flushed does not hide what another thread has written.
#[test]
fn loom_bound_vs_announcement() {
    const OTHER: StatKey = StatKey::STOCK_REFILL;
    large_model_without_pair(|| {
        let (_runtime, root) = build(bare().stat_batch(0));
        // Figures are there: another model explores how they are made (E42).
        stats::published_or_make(
            root.first(),
            stats::coordinator(root.first()),
            StatScope::Group,
        );
        let flusher = beside(root.clone(), |root| root.inspect().flush());
        let reader = beside(root.clone(), |root| {
            root.stat_add(OTHER, 2);
            assert_bounded(&root, OTHER);
        });
        root.stat_add(EVENT, 1);
        reader.join().unwrap();
        flusher.join().unwrap();
    });
}

/// E21. A flush takes a writer off the bound after it has published its last count.
#[test]
fn loom_bound_vs_unlist() {
    model(|| {
        let (_runtime, root) = published();
        let flusher = beside(root.clone(), |root| tidy(&root));
        root.stat_add(EVENT, 1);
        assert_bounded(&root, EVENT);
        flusher.join().unwrap();
    });
}

/// E21. Flushes find the cells of a writer, and unlist them, while it lists them: it is on the
/// bound before they do, and the bound of another writer is none of theirs.
#[test]
fn loom_listing_vs_bound() {
    model_without_pair(|| {
        let (_runtime, root) = published();
        let writer = beside(root.clone(), |root| root.stat_add(EVENT, 1));
        tidy(&root);
        tidy(&root);
        root.stat_add(EVENT, 1);
        let read = root.read(Freshness::Stale);
        assert!(
            (1..1 << 32).contains(&read.max_error()),
            "this thread's addition is not published: {}",
            read.max_error()
        );
        writer.join().unwrap();
        assert_eq!(exact(&root), 3);
    });
}

/// Cells that are being unlisted are released, and another group has them, before the unlisting
/// goes on.
#[test]
fn loom_unlist_vs_release() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        gone.stat_add(EVENT, 1);
        gone.inspect().flush();
        let flusher = beside(runtime.root(), |root| tidy(&root));
        end(gone);
        let next = group(&runtime.root(), "next");
        next.stat_add(EVENT, 1);
        next.inspect().flush();
        flusher.join().unwrap();
        next.stat_add(EVENT, 1);
        assert_eq!((exact(&next), exact(&runtime.root())), (2, 3));
    });
}

/// A group goes with its last writer: the parent has what that thread has written, once.
#[test]
fn loom_add_vs_offline() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        race(gone.clone(), |gone| gone.stat_add(EVENT, 1), || end(gone));
        assert_eq!(runtime.dying_count(), 0);
        assert_eq!(exact(&runtime.root()), 1);
    });
}

/// An addition that a thread makes before the last bytes go back is in the parent. The next group
/// in the object starts from zero, and finds no cells of the last one.
#[test]
fn loom_stats_of_last_uncharge() {
    model_without_pair(|| {
        let (runtime, gone) = with_group(bare(), "gone");
        gone.stat_add(EVENT, 1);
        let charge = gone.charge(1).unwrap();
        gone.offline().unwrap();
        race(charge, |charge| charge.stat_add(EVENT, 1), || drop(gone));
        let next = group(&runtime.root(), "next");
        next.stat_add(EVENT, 1);
        assert_eq!((exact(&next), exact(&runtime.root())), (1, 3));
    });
}

/// E8. The next thread goes on with the cells of a thread that has ended, while a third thread
/// reads.
#[test]
fn loom_stats_of_thread_handed_over() {
    model_without_pair(|| {
        let (_runtime, root) = build(bare());
        let threads = [(); 2].map(|()| beside(root.clone(), |root| root.stat_add(EVENT, 1)));
        root.inspect().flush();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        race(
            root.clone(),
            |root| root.stat_add(EVENT, 1),
            || root.inspect().flush(),
        );
        assert_eq!(exact(&root), 3);
    });
}
