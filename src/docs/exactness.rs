//! What each figure means, and how far it may be off.
//!
//! *Quiescent* means that no thread charges or uncharges below the level that is read.
//!
//! | figure | while other threads run | when quiescent |
//! |---|---|---|
//! | `usage` | exact for the limits at that instant; includes credit, and walks in flight that may yet be undone | live + credit |
//! | `stocked` | an estimate: slots are read one after the other | exact |
//! | `live` = `usage - stocked` | an estimate, never negative | exact |
//! | `stocked_bound` | an upper bound on `stocked` (below) | the same |
//! | `forced` | `usage - forced <= max` at any instant, but between the beginning and the return of a `Group::set_max` that lowers it below usage. Never too low; too high by what is uncharged while a forced charge is under way, until more bytes are given back | the same |
//! | `peak` | the highest usage that admitted charges left behind, credit included; a refused charge leaves none (in a set with independent stocks it may: its later counters were charged) | the same |
//! | `failcnt` | refusals at that level; forced charges are none | exact |
//! | `Group::refused_count` | the same figure, as groups call it | exact |
//! | `usage_local`, `live_local` | an estimate: one group after the other | the group's own, and what groups that went offline left to it |
//! | `Runtime::dying_count` | exact for one moment; groups whose credit is not settled count | 0 once no handle and no charge is left, after `settle` |
//! | `Group::snapshot`, `Runtime::snapshot` | one row after the other, under no lock: each group that is online all the time has a row, each figure is one that its group had; rows are of different times ([`Snapshot`](crate::Snapshot)) | exact |
//! | `is_in_excess`, `descendants_in_excess` | one step behind a walk in flight | exact: usage, credit included, above the soft limit |
//! | `effective_min`, `effective_low` | an estimate: level after level | exact |
//! | `events` | each event is counted at its level first, then above | exact, and never less than the children's together |
//! | `ReclaimReport::freed` | what the reclaiming thread uncharged, or the fall of usage; other threads may charge what was freed before it is used | exact where no other thread charges |
//! | `children_min_usage` | one step behind a walk in flight | the sum over children of min(usage, min) |
//!
//! # The bound on stocked credit
//!
//! ```text
//! stocked(c) <= stocked_bound(c) = sum over open stocks s below c of touched(s) x 2 x batch(s)
//! stocked_bound(root) <= budget  = configured, or root max / 16
//! ```
//!
//! `touched(s)` counts the threads that ever kept credit for s, ended threads included until another thread takes over
//! their slot. A thread reserves its share before its first credit, and goes without stock where the budget has none
//! left. While a drain settles, credit that it has taken out counts as usage until it is uncharged.
//!
//! # Limits
//!
//! From the return of a successful `set_max` on, `usage <= max + forced` at that level. (A lowering waits for walks in
//! flight that may have passed under the old max. It does not wait for a walk made inside another slow path of its
//! thread, or by a thread past its destructor, which shows until it is undone.) A charge that fits is never refused for
//! credit: a refusal at L implies an instant during the call at which live charges + charges in flight + n > max(L).
//! Charges in flight include walks that are refused higher up and not yet undone, and a lower max that `set_max` tries
//! and takes back. Three things weaken "never", and all are counted in `Counts::refused_in_transit`: a thread that
//! stays in transit for more than a millisecond, a barrier that the system refuses, and a charge that an allocator
//! makes inside another slow path of its thread.
//!
//! A max that is set below usage (`Group::set_max`) holds at once for charges to come. What is above it counts as
//! `forced`, the call asks reclaim for it, and returns what remains.
//!
//! With reclaimers registered below L, a refusal at L implies besides that a round of reclaim freed nothing, or that
//! the rounds (16 that bring little, 256 at most) or `reclaim_time` were used up. The rounds asked each reclaimer below
//! that says that it has something and is not protected by min. One exception: a reclaimer that has freed nothing six
//! times in a row, and whose group has not grown since, is asked in one of eight rounds.
//!
//! # The end of a group
//!
//! A charge that begins after `offline` has returned is refused, on every thread. A charge that runs meanwhile may be
//! made, and stays on the group. Credit of a group that went offline stays in its ancestors' usage until it is settled,
//! within `stocked_bound`: at most 64 groups are unsettled, and none where a limit looks for room. The pool gets an
//! object back once no handle and no charge is left, exactly once.
//!
//! # Statistics
//!
//! | read | at most missing, of any item, in grains of its unit |
//! |---|---|
//! | `Freshness::Exact`, and any read right after `Group::flush` returned | nothing that was written before the call |
//! | `Freshness::Threshold` | `writers x batch` |
//! | `Freshness::Within(e)` | `e` |
//! | `Freshness::Stale` | `announced - flushed + writers x batch / 2`, which is `Stats::max_error` of every read |
//!
//! A grain is 1 event, 4,096 bytes or 65,536 ns; each addition counts as its magnitude, rounded up, so +1 and -1 make
//! 2, and one bound holds for all items together. `batch` is the builder's `stat_batch`, 1,024 grains unless
//! configured. A *writer* is a pair of a thread and a group of the subtree that has written since it was last unlisted.
//! With several memory nodes there is one writer more for each node on which the thread has accounted for the group.
//! Pairs are unlisted once four flushes in a row have found them idle: by the periodic flusher, or by any flush that
//! finds eight of them. Fewer pairs take more flushes: a single one 32. A thresholded read flushes now and then though its
//! bound would allow it not to: the second read of a group, then one read of up to 64, and each while most of the pairs
//! have stopped. So writers that have stopped leave every bound within a few flushes, or a few reads, without a
//! flusher. Only where all reads are stale do they stay. An addition that leaves its thread with more than half
//! a batch unannounced announces all of it, at every level, before it returns: `announced`. `flushed` is the part of it
//! that is published.
//!
//! A bound is about what had been written when the reader looked it up. `max_error` of `Freshness::Within(e)` is at most e.
//!
//! `max_error` of an exact read is what was written while the read ran: 0 if no thread wrote. The reader flushes, reads
//! the figures, and flushes a second time. The error is all that the second flush and other flushes published since,
//! each change as its magnitude, for all items together. So a gauge that one thread raises and another lowers may be
//! read as a value that it never had. But there is an instant between the two flushes at which it was within the error
//! of that value. What was written between the call and the first flush is in the figures, and what was written after
//! the second is not. The other reads flush once at most, and their error says nothing of what was written while they
//! ran.
//!
//! Is a rate limit still needed, as the patch series that restored subtree flushing asks? Hardly. A read that finds
//! itself within its bound costs 17 ns, less than the 28 ns of the look at the clock with which `flush_ratelimited`
//! declines. A flush costs 0.2 microseconds where one pair was written, 9 to 16 where 100 were. Only a reader that asks
//! at every event for a subtree with thousands of groups that are written all the time (1 to 2.6 ms for 10,000), and
//! can do with figures of two periods ago, gains by it. (`stat/read/below_threshold`, `stat/flush_ratelimited`,
//! `stat/flush/updated1` to `10000`; 2 cores of an AMD EPYC, Zen 4.)
//!
//! "Written before the call" is what the reader can know of: an addition that has returned, and which something orders
//! before the read (the same thread, a join, a channel, a lock). Additions that run meanwhile may or may not be in.
//! Neither the items of one read nor the threads of one item are read at one instant. So only items that only grow are
//! sure to be read as values that they had; for the others an exact read gives the error. For items that only grow a
//! parent that is read after its child is never below it. When no thread writes, every figure is exact after one flush,
//! and `subtree = local + subtrees of all children ever`: what a group that went offline had counted stays with its
//! ancestors.
//!
//! Not counted: items of another runtime (`Counts::foreign_stats`), and what an allocator adds inside another slow path
//! of its thread to a group that no thread has written yet (`Counts::nested_stats`). Counts wrap at 2^63. More than
//! 2^56 grains in one addition are flushed at once (but inside another slow path).
//!
//! # Memory on nodes
//!
//! `numa_stat` takes a `Freshness`, too, and says how far it may be off over all nodes together. When no thread
//! accounts, this holds for every group and item. The nodes and what is on none add up to
//! `read(Freshness::Exact).get(item)`. What the groups alone have on a node adds up to what the root has there. Both
//! are, to the byte, what `Kmem` guards hold. A guard takes off each node what it has put there, also where the group is offline by
//! then, so what is accounted falls to zero with the guards. No figure is rounded: an object that straddles two pages
//! is split where the first ends.
//!
//! What is accounted never exceeds what was precharged, where the placement keeps its bound. Where it does not, the
//! rest is charged by force, and shows in `forced`. Bytes that were charged and could not be accounted (inside another
//! slow path, where nothing of the group is published yet) are in `live` and on no node.
//!
//! A read takes an item of a runtime with several nodes, and the sum of its nodes, node by node. What moves from node
//! to node meanwhile may be in it twice, or not at all. The error of an exact read covers that too.
//!
//! A tier's counter holds the bytes on its nodes, and those on none yet that were admitted for it. `migrate` and
//! `relocate` report what has happened already and force a tier; `try_migrate` asks it.
//!
//! # Limits and statistics
//!
//! Limits never decide on statistics; they decide on counters. A limit that a caller keeps on a statistic, with
//! an exact read before each addition, overshoots by no more than the additions under way.
//!
//! # Waiting
//!
//! A charge that fits is refused, or waits, for the sake of order while others wait in line at a level
//! (`OverLimitError::is_behind`): the one exception to what is said of refusals above. Other charges of at most as many bytes
//! together as the first in line asks for may barge, in its whole wait: newcomers, and up to 64 of those behind it.
//! More bytes only barge where they were in flight at the moment it became first, or are charged inside reclaim. The
//! oldest charge is first, at whatever level it waits by now.
//!
//! What is given back below a level where a charge waits has left the level's usage when the call that gives it back
//! returns. Each waiter that it admits has been charged and woken by then, or will be by the thread that was about to
//! serve that level. So each admission is one wake-up. A waiter has charged no bytes until it is served. A waiter that
//! is dropped, or whose time is over, gives back what it was given meanwhile. `charge_timeout(b, t)` returns after `t`,
//! and what a first reclaim and the delay of *high* take besides.
//!
//! # High
//!
//! The delay is the kernel's: `((usage - high) / high)^2 x 64 s x bytes / 256 KiB`, the greatest of all levels, none up
//! to 10 ms, at most `delay_max`. Only a charge that walks looks at high, so a thread passes high by as much as its
//! stock holds before it notices, as in the kernel. A sleeping thread looks every 10 ms whether a level is still above
//! high. A future is woken once: at most 1 ms after the delay where the processor is free, or by a look which finds
//! that no level is above high. Looks come 10 ms after the delay began, and then each time that it is a quarter older.
//!
//! # Victims
//!
//! The choice goes by the counters as they are at that moment, credit included: `usage - max(effective low, soft)`,
//! less that of the candidates below. Reclaim has freed nothing for this charge before, and the charge looks for room
//! under the same lock. A domain has one victim at a time: the charge waits until the victim's usage is down to its
//! share, or `oom_time` is over.
//!
//! # Underflow
//!
//! Uncharging more than was charged is detected where usage would fall below zero, which may be later and deeper than
//! where it was done: the surplus first looks like credit. That level takes off only what it really held, and only so
//! much is uncharged from its ancestors. `verify` with audit names the counter and the amount at once. Where two
//! threads give back too much at the same instant, usage may read too low, by no more than it was, until the second has
//! seen it.
