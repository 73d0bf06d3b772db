//! What the crate does not do, by topic.
//!
//! # Charges and limits
//!
//! * **A counter cannot tell whose units are uncharged.** `forced` assumes that the units above max go first.
//! * **`cancel` takes units off one level only.** It is a step of undoing a charge by hand; used otherwise it breaks
//!   the identity, and `verify` says so.
//! * **More than four million counters at a time** go without stock beyond that number.
//! * **Counters of a group have a stock each**, unless they [share one](crate::NewCounter::shared) with
//!   memory. What is charged to such counters in unequal amounts goes through their own stocks.
//!
//! # Threads, processes and machines
//!
//! * **Signal handlers do not charge**, as they do not allocate.
//! * **A global allocator may call `charge`, `try_charge`, `charge_raw`, `try_charge_raw`, `uncharge`, `stat_add`,
//!   `precharge` and `account`, and drop what those make, and no other call**; an account on more than three nodes
//!   allocates itself. Inside another slow path of the same thread these walk without stock and are refused without a
//!   drain. Reading `stocked` there, or changing a limit, would wait for a lock that the thread may hold.
//! * **After fork without exec** the child has one thread and a copy of all memory. Credit of the other threads is
//!   still there and drains. A tree whose lock another thread held at the fork is locked for ever, as with `malloc`. A
//!   thread that was in transit at the fork stays so: each drain in the child waits a millisecond for it and gives up.
//!   A delay of `charge_async` that was under way at the fork ends in the child when another delay begins there.
//! * **Outside Linux on x86-64 and aarch64** both sides of the barrier are fences: correct, and a charge costs a fence
//!   more.
//! * **Pools do not shrink**: they use objects, slots and headers again and never give them back to the system.
//!   Runtimes share the pools of their shape: counters, nodes, items, alignment.
//! * **A thread takes new objects while other threads have some at hand**: up to 32 for each processor. A pool looks at
//!   those before it refuses.
//! * **With a degraded barrier** (`BarrierState::Degraded`) the credit of groups that went offline stays in its slots
//!   until the owners use them again, and the owners' charges may still hit it. A charge that waits for room may then
//!   wait for credit that no thread returns.
//! * **With a degraded barrier no cells are unlisted**: every flush from then on visits each pair of a thread and a
//!   group that has written once. The pairs stay in the bound of every read that does not flush.
//! * **Where a hit pays a fence** (`BarrierMode::Fence`) an addition to the statistics takes some 20 ns.
//!
//! # Waiting, delays and victims
//!
//! * **A charge may sleep**: above *high*, `delay_max` at most; and where a group chooses victims, `oom_time` for each.
//!   On a thread that drives futures a victim whose task needs that thread gives nothing meanwhile: the charge is
//!   refused once its time is over. There use `charge_async` or `try_charge_undelayed`, which wait for no other thread.
//!   Each call that may block says so in the first line of its documentation.
//! * **`charge_async` and `try_charge_undelayed` run foreign code**: reclaimers, and the cancel hooks of one victim, on
//!   the thread that polls or calls. That code must not block.
//! * **`try_charge_or_start` calls `Reclaim::start`** on the thread of the charge, which must not block. Where promises
//!   made there cover what is missing, and do not hold, nothing else is reclaimed for `reclaim_time`.
//! * **What `try_charge_or_start` starts needs a thread**: one for the runtime, `memcg-reclaim`, which ends a second
//!   after the last work. A reclaimer that blocks there holds up the work that follows. Where the system gives no thread
//!   nothing is started, and such a charge wakes other threads and calls listeners itself.
//! * **A charge that never blocks closes no stock.** Where all charges are such, credit of other threads stays out near a
//!   limit, until `try_charge_or_start` has it drained or another call does.
//! * **`charge_async` needs other charges.** It asks reclaimers when it is polled first, and when it has moved to
//!   another group's line. It asks again, for which `memcg-delays` wakes it, where other threads were asking at the
//!   same time. It has one group cancelled. Afterwards a thread that gives bytes back serves it, and another charge
//!   that does not fit asks again. Where no other charge is made no second victim is chosen: put a time limit around it
//!   and try again.
//! * **A delay of `charge_async` needs a thread**: one for the process, `memcg-delays`, which starts with the first
//!   such delay and ends a second after the last. Where the system gives no thread the charge is made and not delayed.
//!   A waker that blocks holds up the wakers after it. `undelayed` leaves the delay to the caller. Where there is no
//!   thread a charge in line asks reclaimers no second time because of other threads' rounds.
//! * **A charge that waits while its thread holds memory may wait for itself.** Two queries that each hold half and
//!   wait for more end by a time limit, or by a victim, else never.
//! * **Waiting, high and victims are for memory.** Further counters refuse at once; only `set_observe_only` lets
//!   through what their max would refuse, too. Transfers do not wait in line.
//! * **Only groups with a cancel hook are cancelled**, and only as far as the hook acts: the crate frees nothing by
//!   force. A group that ignores its hook costs every charge `oom_time`, once for each.
//! * **What exempt groups, and groups without a hook, hold counts as their subtree's overrun** where it goes as one
//!   (`oom_group`).
//! * **The bound on barging is for the first in line.** The crate admits others behind the first for the first's
//!   barging budget, and then for the next one's.
//! * **While a charge waits at a level no counter below it has a stock**: each charge and each uncharge there walks,
//!   and takes the line's lock where it gives bytes back.
//!
//! # Reclaim
//!
//! * **A reclaimer runs on the thread whose charge does not fit**, with all locks of yours that this thread holds. The
//!   caller should charge before it locks, or the reclaimer try the locks and free nothing where one is taken. The time of a charge in
//!   reclaim is bounded between calls, not within one.
//! * **Reclaim is for memory.** Further counters refuse without asking a reclaimer.
//! * **What a reclaimer hands to other threads shows only in usage**: where others charge meanwhile the reclaimer may
//!   look as if it had freed nothing, and rounds then spare it for a while. A reclaimer that reports `later` is not
//!   affected.
//! * **The charging thread waits for a promise** (`ReclaimContext::later`), for at most `reclaim_time`.
//! * **A panic of a reclaimer is contained only where panics unwind.**
//!
//! # Events and registrations
//!
//! * **A hook, a listener or a cache that owns its own `Registration` is never dropped**: the registration keeps it, and
//!   that of a hook or a listener its group's object. A group that went offline can be chosen as long as it has a hook.
//! * **A listener, a waker and a cancel hook run on the thread that freed, counted or charged**, with all locks of
//!   yours that it holds. That thread may be inside a reclaimer: there its charges are refused without reclaim, and it
//!   does not wait.
//! * **Waiting for an event of a group that goes offline does not end with it.**
//!
//! # Groups and what they keep
//!
//! * **A group lasts until it is taken offline.** Dropping its handles does not end it: a look-up finds its name as
//!   long as it is online. One that goes with a value is a [`GroupScope`](crate::GroupScope).
//! * **`Charge::forget` keeps a group's object for ever**, and its bytes in every ancestor.
//! * **`Group::uncharge` of bytes that guards hold keeps that group's object for ever**, where the guards outlive its
//!   handles: a late drop of a guard then finds its own group.
//! * **A charge or a handle that is kept keeps its ancestors' objects**, about half a kilobyte each, also after the
//!   runtime is gone.
//! * **An `OverLimitError` that is kept keeps the objects of the groups it names**, five at most.
//!
//! # Statistics and figures
//!
//! * **Without audit `verify` finds less**: sums of children, bounds, protection, underflows, but not a charge that was
//!   never uncharged.
//! * **Statistics take memory where they are written**: with the built-in items about half a kilobyte for each pair of
//!   a thread and a group, and as much for each group and each of its ancestors. 64 items take three times that. With
//!   several memory nodes the same again for each node on which anything is accounted. Once a group is gone the next
//!   group gets that memory. What threads write goes back to the system with the tree; what is published of groups
//!   stays in its pool.
//! * **Where the system refuses memory for a group's statistics or counts of events**, the nearest group above that has
//!   some counts them. The same goes for a group's first event inside an allocator that charges.
//! * **`own_bytes` counts what belongs to the process in full for each of its runtimes**: slots, and free objects of
//!   pools.
//! * **At most 64 items**, those built in included.
//!
//! # Memory on nodes
//!
//! * **The caller says where memory lies.** The crate watches no pages: what the system migrates on its own stays
//!   accounted where it was until its owner looks again (`Kmem::relocate`).
//! * **A group that is offline gets no new statistics on a node**: what comes to lie there counts for the nearest group
//!   above that has statistics there.
//! * **A `NodeOf` that keeps a handle of its own runtime is never dropped**, nor is that runtime's tree.
//! * **On a node is what is accounted there**: `stat_add` does not say where, and counts as on no node where there are
//!   several.
//! * **A page that is looked up through a huge page is one answer for all of it.**
