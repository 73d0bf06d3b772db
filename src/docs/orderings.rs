//! Every ordering edge: its two ends, its shape, and the loom model that fails without it.
//!
//! *light* and *heavy* are the two sides of the asymmetric barrier, each standing for `fence(SeqCst)`. The models run
//! on the production types; `.ci/mutations.txt` removes each edge in turn and names the model that must fail.
//!
//! | edge | one end | other end | shape | model |
//! |---|---|---|---|---|
//! | E1 | a level admits: exchange usage, read max again | `store_max`: exchange max, read usage | store buffering | `loom_charge_vs_set_max` |
//! | E2 | `consume`: store `level`, light, read `drained` | `claim`, heavy, `settle` reads `level` | store buffering | `loom_consume_vs_drain`, `loom_put_vs_drain`, `loom_undone_consume_vs_close` |
//! | E3 | `put`: store `level`, light, read capacity | close: capacity 0, heavy, read `level` | store buffering | `loom_put_vs_close`, `loom_put_vs_smaller_batch`, `loom_switch_off_vs_charge`, `loom_refusal_vs_put` |
//! | E4 | open: count the stock, read usage | a forced charge: exchange usage, read the count | store buffering | `loom_forced_vs_opening` |
//! | E5 | transit odd, light, read capacity | close: capacity 0, heavy, read transit | store buffering | `loom_refill_vs_close`, `loom_walk_vs_set_max`, `loom_walk_vs_imposed_max` |
//! | E6 | `Transit::end` | `Transit::wait` | release/acquire | `loom_refusal_vs_refill_in_transit` |
//! | E7 | a page of slots is published | any thread follows the pointer | release/acquire | `loom_first_touch_vs_close` |
//! | E8 | a thread ends and releases its block | the next thread takes it | the registry's mutex | `loom_thread_exit_vs_drain`, `loom_stats_of_thread_handed_over` |
//! | E9 | a block is published | drains follow the list | release/acquire | `loom_first_touch_vs_close` |
//! | E10 | open: count, then capacity; close: drain, then uncount | a refusal reads the count before usage and after | release/acquire | `loom_refusal_vs_closing`, `loom_refusal_vs_opening`, `loom_refusal_vs_retire`, `loom_refusal_vs_adaptive`, `loom_refusal_vs_refill_in_transit`, `loom_transfer_vs_stranded_credit` |
//! | E11 | usage or a setting changes, then the thread exchanges what the parent has of it | the same on another thread | release/acquire, and store buffering between usage and setting | `loom_min_propagation`, `loom_min_setting_vs_charge`, `loom_protection_vs_uncharge` |
//! | E12 | a counter is released: its slots are vacated, its object goes to the pool | the next counter in the object | the pool's locks | `loom_take_vs_put`, `loom_put_vs_take_elsewhere`, `loom_index_reuse`, `loom_object_reuse`, `loom_object_reuse_without_pair`, `loom_stats_of_last_uncharge`, `loom_unlist_vs_release`, `loom_last_waiter_vs_last_uncharge` |
//! | E13 | a level admits: exchange usage, read the running peak | a window is reset: exchange the running peak, read usage | store buffering | `loom_peak_window_vs_charge` |
//! | E14 | a thread charges: mark itself or the others as chargers, or read that they are marked, then read capacity | the only charger takes the group offline: capacity 0, read the mark | store buffering | `loom_offline_vs_second_charger`, `loom_offline_vs_third_charger` |
//! | E15 | a last step (subtract usage, drop a handle), then read state, claim it, then read usage | another last step on another thread | store buffering, and the exchanges of the state word | `loom_guard_turns_over_vs_last_handle`, `loom_last_of_two_counters`, `loom_last_uncharge_vs_handle_drop`, `loom_last_uncharge_vs_last_uncharge`, `loom_hit_without_guard_vs_claim`, `loom_keep_vs_handle_by_id`, `loom_uncharge_without_guard_vs_guard`, `loom_uncharge_without_guard_vs_handle_drop`, `loom_usage_touches_zero_vs_handle_drop`, `loom_zero_guard_grows_vs_last_uncharge`, `loom_zero_guard_shrinks_vs_last_uncharge`, `loom_protection_vs_last_uncharge`, `loom_runtime_drop_vs_last_charge`, `loom_transfer_vs_last_handle` |
//! | E16 | an object begins its next incarnation | an id of an earlier one is looked up | the generation in the state word | `loom_id_reuse` |
//! | E17 | `ThreadStats::add`: store the count, light, read the mark | `Coordinator::unlist`: unmark, heavy, read the count | store buffering | `loom_add_vs_unlist`, `loom_add_vs_unlist_vs_flush`, `loom_listing_vs_unlist` |
//! | E18 | a writer pushes cells on the stack | a flush takes the stack | release/acquire | `loom_listing_vs_take_over`, `loom_add_vs_offline` |
//! | E19 | a reader takes a ticket | a flush begins: count the tickets, then read | release/acquire | `loom_two_readers_share_a_flush`, `loom_listing_vs_shared_flush` |
//! | E20 | announce at the levels, then in the cells | gather: the cells' announced, then their counts | release/acquire | `loom_bound_vs_announcement` |
//! | E21 | publish figures, then take off the bound | a stale read: the bound, then the figures | release/acquire | `loom_bound_vs_flush`, `loom_bound_vs_unlist` |
//! | E22 | publish the parent, then the child | read the child, then the parent | release/acquire | `loom_parent_never_below_child`, `loom_nested_account_vs_flush` |
//! | E23 | usage or a soft limit changes: exchange it, read the mark | `cross`: exchange the mark, read usage again | store buffering | `loom_crossing_vs_crossing`, `loom_crossing_vs_soft_limit`, `loom_crossing_vs_offline`, `loom_crossing_vs_last_uncharge` |
//! | E24 | a walk counts its call, then looks whether the registration is dropped | a registration is dropped: mark it dropped, then read the calls | the exchanges of one word | `loom_registration_vs_walk`, `loom_event_vs_listener_dropped` |
//! | E25 | a charge goes into line: mark the level, then look at usage | bytes are given back: exchange usage, read the mark, schedule the level | the exchanges of usage; of the mark, between the thread that schedules and the one that serves | `loom_waiter_vs_uncharge`, `loom_waiter_vs_two_uncharges`, `loom_waiter_vs_set_max` |
//! | E26 | a listener begins to wait: mark the level, then read the count | the event happens: count, then read the mark | store buffering | `loom_event_vs_waiter` |
//! | E27 | a charge goes into line: mark the group, then read whether it is offline | it goes offline: set the bit, then read the mark | store buffering | `loom_waiter_vs_offline` |
//! | E28 | a page has moved, then its word is invalidated | a look-up claims the word, asks, then settles it | the exchanges of one word | `loom_cache_fill_vs_invalidate`, `loom_cache_two_fills_vs_two_invalidates`, `loom_cache_fill_vs_second_fill` |
//! | E29 | a member is moved: its group, then the count of moves | the member looks: note the count, then read the group | the order of either side, and the lock of the group | `loom_move_vs_refresh` |
//! | E30 | a chunk of a pool, and the page of the directory that it is in, are published | an object is looked up by number | release/acquire | `loom_chunk_vs_look_up` |
//! | E31 | a max is set: exchange the ceiling, read usage | a charge inside reclaim admits: exchange usage, read the ceiling | store buffering | `loom_imposed_max_vs_charge_in_reclaim` |
//! | E35 | open: count the stock, then read whether its group is barred | offline: bar the group, then read the count | store buffering | `loom_offline_vs_opening` |
//! | E36 | a closing is done with a stock: uncount it | release: read that, then recycle the counter | release/acquire | `loom_settle_vs_release` |
//! | E37 | a child comes: one more in its parent's word | the parent goes offline: bar the word | the exchanges of one word | `loom_offline_vs_create_child` |
//! | E38 | a thread changes the runtime's own bytes, or the group that has their charge: one more request | the thread that updates the charge: read all of it, then see that there is no new request | the exchanges of one word | `loom_own_bytes_vs_offline` |
//! | E39 | a forced charge sets units above max apart, then usage shows them; an uncharge takes them off usage, then off those set apart | a thread reads usage and then what is forced, or the other way round | release/acquire | `loom_forced_vs_look_at_usage`, `loom_forced_vs_uncharge` |
//! | E40 | counts of a group's events are made | an event is counted, or the counts are read | release/acquire | `loom_first_events_vs_read` |
//! | E41 | publish figures, then count what is in them | an exact read: the count, then the figures | release/acquire | `loom_counted_vs_published`, `loom_exact_read_vs_gauge` |
//! | E42 | a group's published statistics are made | a thread that writes or reads follows the pointer | release/acquire | `loom_first_write_vs_read` |
//!
//! Four edges rest on the pair: E2, E3, E5 and E17. One side of each runs *heavy*. Every other edge holds without it. A
//! thread may run *light* between two of its steps, but *light* orders nothing on a processor while no thread runs
//! *heavy*, and a model takes it for a fence. So the models of all other edges run without the pair
//! (`model_without_pair`): neither side is a fence there. Such a model sees all that the same model with the pair sees.
//!
//! These models keep the pair. `loom_refusal_vs_adaptive`, `loom_refusal_vs_refill_in_transit` and
//! `loom_transfer_vs_stranded_credit` show E6 and E10 together with E5. `loom_first_touch_vs_close` shows E7 and E9
//! together with E3, `loom_bound_vs_unlist` E21 together with E17, `loom_hit_without_guard_vs_claim` E15 together with
//! E3. `loom_object_reuse` runs both ways. `loom_last_waiter_vs_last_uncharge` keeps the pair, too; `loom_index_reuse`
//! shows its edge without it.
//!
//! What is not in the table is not an edge: the peak over a counter's whole time, published bounds, settings of the OOM
//! policy and the mark *tight* are relaxed, and no code concludes anything from their order. (Code that relies on all
//! stocks below being closed has *waiting*, E25, for that.)
//!
//! # What loom leaves out
//!
//! Loom 0.7.2 looks for orders to try at the last access to a word, and a load of one thread hides a load of another.
//! Where a thread loads a word before it exchanges it, loom may never try that exchange before another thread's load
//! (`sync::model::loom_integers` says how). Without the mark *moved* (E15) the model
//! `loom_guard_turns_over_vs_last_handle` passes all 1,044 schedules that loom finds with no bound of preemptions. With
//! `LOOM_LOADS=exchanges` each load of an integer conflicts with every access, and the model fails at three
//! preemptions. So it does under a loom that remembers the last load of each thread. Loads of pointers stay as they
//! are.
//!
//! Such a loom finds more schedules in four models of five: in each where a walk, a last step or a compare-exchange
//! loop takes part. Without the setting those models say what loads of older values may do, and nothing of all orders.
//! So `.ci/loom` runs each model both ways, and all hold.
//!
//! Loom also forgets an unpark where the thread waits for a lock before it parks; in a model threads park by a lock and
//! a condition (`sync::model::loom`).
