//! Where the names come from, and where they mean something else here.
//!
//! | here | in the kernel | differs |
//! |---|---|---|
//! | `PageCounter::try_charge` | `page_counter_try_charge` | compare-exchange instead of add and undo: no refusal of a small charge because of a large one at the same level that is about to be undone |
//! | `PageCounter::charge` | `page_counter_charge` | pays from the stock, drains before it exceeds; the excess is kept apart |
//! | `PageCounter::uncharge` | `page_counter_uncharge` | returns credit to the stock, as the kernel's kmem and socket frees do |
//! | `PageCounter::cancel` | `page_counter_cancel` | |
//! | `PageCounter::set_max` | `page_counter_set_max` | drains credit before it says busy |
//! | `set_min`, `set_low` | `page_counter_set_min`, `page_counter_set_low` | propagation loops until it is exact |
//! | `peak` | `watermark` | a refused charge leaves none; recorded after the whole walk |
//! | `peak_window` | writing to an open `memory.peak` | |
//! | `failcnt` | `failcnt` | counted at the level that refused |
//! | batch | `MEMCG_CHARGE_BATCH` | 64 units, changed at run time |
//! | stock | `memcg_stock_pcp`; `page_counter_stock` in the 2026 series | one slot for each (thread, counter), no read-modify-write, drained by any thread |
//! | `drain` | `drain_all_stock` | no caller skips; complete on return when no thread charges meanwhile |
//! | `CounterSet` | memory and memsw charged together | refused as one, with one shared stock if wanted |
//! | pressure hook | `try_to_free_mem_cgroup_pages`, at most `MAX_RECLAIM_RETRIES` | |
//! | `Group` | `struct mem_cgroup` | a handle; the object is kept by handles and by live charge itself |
//! | `Charge` | a charged folio | a value that uncharges when it is dropped |
//! | `Group::create`, `offline` | `mkdir`, `rmdir`; `css_online`, `css_offline` | the name is free at once; any group can be charged, also one with children |
//! | `Group::set_max` | writing `memory.max` | drains, reclaims, cancels where the policy says so, and reports what remains above |
//! | `Group::set_max_now` | the same with `O_NONBLOCK` | |
//! | `Group::set_high`, `Limits::high` | `memory.high` | the worst level's delay; slept where the charge is made, in slices, and no longer than a level is above high |
//! | `high_delay` | `calculate_high_delay` | nanoseconds for jiffies; bytes for pages: scaled by bytes / 262,144 |
//! | `charge_timeout`, `charge_async` | none: a charge reclaims, kills or fails | in line at the level that refused; a thread that frees bytes charges for the first |
//! | `try_charge_now`, `try_charge_or_start` | a charge without `__GFP_DIRECT_RECLAIM`; `high_work` | no event; the second has a thread reclaim |
//! | `try_charge_undelayed`, `charge_async` | handling deferred to the return to user space | the delay is returned, or a thread wakes the future when it is over; neither waits for a victim |
//! | `OnExhausted` | `__GFP_NORETRY`, `__GFP_NOFAIL` | text for configuration files |
//! | `OomPolicy::Choose` | `mem_cgroup_out_of_memory`, `select_bad_process` | the overrun of a share in place of points; a victim's hook asks it to free, no process is killed, and it has `oom_time` |
//! | `Group::on_cancel` | `SIGKILL` | only groups with a hook can be chosen |
//! | `set_oom_group`, `set_oom_exempt` | `memory.oom.group`, an `oom_score_adj` of -1000 | the highest such group stands for its subtree in the choice, too |
//! | `Events::wait`, `changed`, `on_event` | `poll` on `memory.events` | from a snapshot on: no event is missed in between |
//! | `set_observe_only` | none | |
//! | `diagnose` | `mem_cgroup_print_oom_meminfo` | asked for, not printed |
//! | `Limits::min`, `low` | `memory.min`, `memory.low` | bytes or a percentage of the nearest limited ancestor's max; what children do not claim protects the children that use more, unless switched off (`memory_recursiveprot`) |
//! | `effective_min`, `effective_low` | `effective_protection`, `mem_cgroup_calculate_protection` | worked out at each use, not cached; products of 128 bits |
//! | `Limits::soft` | `memory.soft_limit_in_bytes` of version 1, as in the rework of 2013 | excess is exact at each crossing, not sampled every 1,024 events; holds for pressure from any level |
//! | `descendants_in_excess` | `children_in_excess`, in the rework | |
//! | `is_soft_eligible` | `mem_cgroup_soft_reclaim_eligible` | never looks above the group under pressure |
//! | rings and laps | `mem_cgroup_iter` with a predicate, `mem_cgroup_reclaim_iter` | only groups that count are linked; position is kept in the tree, not with the walk |
//! | `Reclaim` | shrinkers, the LRU lists | foreign code that frees its own charges; judged by what shows |
//! | laps with a share each | priorities from `DEF_PRIORITY` down | a 64th first, then each group's part of what is missing |
//! | `Group::reclaim` | `memory.reclaim` | says what was freed in place of `EAGAIN` |
//! | `Group::set_reserve` | reserves for `PF_MEMALLOC` | below a max, for charges made inside reclaim |
//! | `Event`, `events`, `events_local` | `memory.events`, `memory.events.local` | *overcharge*, *observed* and *panic* are the library's own; *max* counts after the drain; *oom_kill* for each hook; the root counts, too |
//! | `Charge::transfer` | `move_charge` of version 1 | atomic below the common ancestor, which is not touched |
//! | `Runtime::dying_count` | `nr_dying_descendants` | goes to zero with the last charge: no charge is moved to the parent |
//! | pools: `PoolAlign`, `Runtime::pools` | the `mem_cgroup` and `mem_cgroup_per_node` slab caches (2025), `SLAB_HWCACHE_ALIGN`, `/proc/slabinfo` | sized for each configuration, made before the root by construction; a third one for counts of events; recycled with a generation |
//! | feature `tracing` | `kmem:kmem_cache_alloc` | an event for each object, emitted once the thread holds no lock |
//! | further counters | memory and memsw, kmem, tcpmem of version 1 | declared at the builder, each with its own limits; those that share a stock with memory are charged with one hit |
//! | `Group::stat_add` | `mod_memcg_state`, `count_memcg_events` | own cells of each thread; no walk of ancestors, no read-modify-write |
//! | `Stat` | the names of `memory.stat` | those that mean something here, and declared ones; `STOCK_REFILL` and `STOCK_RETURN` are the library's own |
//! | cells, published statistics | `memcg_vmstats_percpu`, `memcg_vmstats` | no figure waits between levels: a flush publishes up to the root |
//! | listed cells | the updated tree of rstat | visited until found idle; an exact read takes no barrier |
//! | `Group::flush` | `do_flush_stats` | the subtree and the path to the root, in slices |
//! | `Group::read(Freshness::Threshold)` | reading `memory.stat`, with `mem_cgroup_flush_stats` | the threshold follows writers, not processors: `writers x batch` |
//! | `Group::flush_ratelimited` | `mem_cgroup_flush_stats_ratelimited` | |
//! | `Runtime::start_flusher` | `flush_memcg_stats_dwork`, every `FLUSH_TIME` | a thread, opt-in |
//! | error bound | 64 x processors of page-sized changes, documented | returned with every read |
//! | `Group::precharge`, `Precharge::account` | `pcpu_memcg_pre_alloc_hook`, `pcpu_memcg_post_alloc_hook` as in "per-memcg-per-node kmem accounting" (2026) | byte-exact: no page for each node on top; the precharge is usage until it is accounted |
//! | `Kmem` | the pages and bytes of an `obj_cgroup` on a node | a guard that remembers what it accounted where |
//! | statistics on nodes | `lruvec_stats` of `mem_cgroup_per_node`, NR_KMEM in it | trees of statistics of their own; a group that is offline gets no new one, in the place of reparenting |
//! | row of cells | `task->objcg` as an array by node | found by the group charged, not by the task |
//! | `Member`, `Mover` | `current_objcg_update` | a count of moves in the place of a tag on the pointer |
//! | `Placement::of`, `MovePages` | `vmalloc_to_page`, `page_to_nid` | the kernel is asked for each page, in batches |
//! | `numa_stat`, `numa_table` | `memory.numa_stat` | exact on request; of the root for the whole runtime |
//! | `RuntimeBuilder::tier` | `toptier` of "tiered memory limits" (2026) | any number of tiers, each a counter with limits of its own |
//! | units | pages | any unit that the owner counts; sizes are byte-exact, no size is rounded to pages |
//! | `tests/kernel/selftests` | `tools/testing/selftests/cgroup`: `test_memcontrol.c`, `test_kmem.c` | the same figures and tolerances; a page is a charge of 4 KiB, a process is a group with a cancel hook and a thread |
