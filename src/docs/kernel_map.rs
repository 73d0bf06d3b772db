//! Where the names come from, and where they mean something else here.
//!
//! | here | in the kernel | differs |
//! |---|---|---|
//! | `PageCounter::try_charge` | `page_counter_try_charge` | compare-exchange instead of add and undo: no refusal of a small charge because of a large doomed one at the same level |
//! | `PageCounter::charge` | `page_counter_charge` | pays from the stock, drains before it exceeds; the excess is kept apart |
//! | `PageCounter::uncharge` | `page_counter_uncharge` | returns credit to the stock, as the kernel's kmem and socket frees do |
//! | `PageCounter::cancel` | `page_counter_cancel` | |
//! | `PageCounter::set_max` | `page_counter_set_max` | drains credit before it says busy |
//! | `set_min`, `set_low` | `page_counter_set_min`, `page_counter_set_low` | propagation loops until it is exact |
//! | `peak` | `watermark` | a refused charge leaves none; recorded after the whole walk |
//! | `peak_window` | writing to an open `memory.peak` | |
//! | `failcnt` | `failcnt` | counted at the level that refused |
//! | batch | `MEMCG_CHARGE_BATCH` | 64 units, changed at run time |
//! | stock | `memcg_stock_pcp`; `page_counter_stock` in the 2026 series | one slot for each (thread, counter), no read-modify-write, drained by anybody |
//! | `drain` | `drain_all_stock` | nobody skips; complete on return when nobody charges meanwhile |
//! | `CounterSet` | memory and memsw charged together | refused as one, with one shared stock if wanted |
//! | pressure hook | `try_to_free_mem_cgroup_pages`, at most `MAX_RECLAIM_RETRIES` | |
//! | units | pages | whatever the owner counts; sizes are byte-exact, nothing is rounded to pages |
