//! The memory of a control group that the kernel cannot give back by itself.
//!
//! The kernel drops page cache and reclaimable slab where a group comes to its limit. All else
//! stays: anonymous memory, shared memory and tmpfs, buffers of sockets, page tables, stacks and
//! other memory of the kernel, pages that are locked. Swap may take anonymous and shared memory, at
//! the cost of the time that reclaim shall save. So those count.
//!
//! Each figure is a lower bound: what the kernel does not tell apart is taken for memory that it
//! can give back.

use crate::files::number;
use crate::limits::Level;
use crate::{HostError, files};

/// Memory that a group or the machine holds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) memory: u64,
    /// Memory that is swapped out: version 1.
    pub(crate) swapped: u64,
}

impl Held {
    /// Memory that the group of `level` and those below it hold; `None` where the kernel does not
    /// say. `meminfo` is the machine's.
    pub(crate) fn read(
        level: &Level,
        version: u8,
        meminfo: &str,
    ) -> Result<Option<Held>, HostError> {
        let Some(stat) = files::read_if_there(&level.dir.join("memory.stat"))? else {
            return Ok(None);
        };
        if version == 2 {
            return Ok(Held::of_v2(&stat));
        }
        let kernel = files::read_if_there(&level.dir.join("memory.kmem.usage_in_bytes"))?;
        let kernel = kernel
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0);
        Ok(Held::of_v1(&stat, kernel, meminfo))
    }

    fn of_v2(stat: &str) -> Option<Held> {
        let figure = |key| number(stat, key).unwrap_or(0);
        let kinds = [
            "slab_unreclaimable",
            "kernel_stack",
            "pagetables",
            "sec_pagetables",
            "percpu",
            "vmalloc",
        ];
        // An older kernel has not all kinds, or no sum.
        let kernel =
            sum(kinds.map(figure)).max(figure("kernel").saturating_sub(figure("slab_reclaimable")));
        let pages = Pages::of(stat, "", "anon", "file")?;
        // `hugetlb` is there where huge pages of files count against the limit.
        Some(Held {
            memory: sum([pages.held(), figure("sock"), figure("hugetlb"), kernel]),
            swapped: 0,
        })
    }

    /// Version 1 counts what is below in the figures `total_...`. Sockets have a limit of their own
    /// there.
    fn of_v1(stat: &str, kernel: u64, meminfo: &str) -> Option<Held> {
        // A group does not tell the reclaimable part of its slab. It is at most the machine's.
        let kernel = kernel.saturating_sub(number(meminfo, "SReclaimable").unwrap_or(0));
        let pages = Pages::of(stat, "total_", "rss", "cache")?;
        let swapped = number(stat, "total_swap").unwrap_or(0);
        Some(Held {
            memory: sum([pages.held(), kernel]),
            swapped,
        })
    }

    /// Memory that all processes of the machine hold. `None` where the kernel does not say.
    pub(crate) fn of_machine(meminfo: &str) -> Option<Held> {
        let figure = |key| number(meminfo, key).unwrap_or(0);
        let anon = number(meminfo, "AnonPages")?;
        let kinds = [
            "Shmem",
            "SUnreclaim",
            "KernelStack",
            "PageTables",
            "SecPageTables",
            "Percpu",
        ];
        Some(Held {
            memory: anon.saturating_add(sum(kinds.map(figure))),
            swapped: 0,
        })
    }
}

/// The pages of a group that belong to processes and files.
struct Pages {
    anon: u64,
    shared: u64,
    /// Pages of files that are locked in memory.
    locked: u64,
}

impl Pages {
    /// `None` where the text does not say how many are anonymous.
    fn of(stat: &str, before: &str, anon: &str, file: &str) -> Option<Pages> {
        let figure = |key: &str| number(stat, &format!("{before}{key}"));
        let anon = figure(anon)?;
        let shared = figure("shmem").unwrap_or(0);
        let locked = || {
            // Pages that are neither shared nor swap cache nor on a list of pages that the kernel
            // can drop.
            let listed = figure("inactive_file")?.saturating_add(figure("active_file")?);
            let others = sum([listed, shared, figure("swapcached").unwrap_or(0)]);
            Some(
                figure(file)?
                    .saturating_sub(others)
                    .min(figure("unevictable")?),
            )
        };
        Some(Pages {
            anon,
            shared,
            locked: locked().unwrap_or(0),
        })
    }

    fn held(&self) -> u64 {
        sum([self.anon, self.shared, self.locked])
    }
}

fn sum<const N: usize>(parts: [u64; N]) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(stat: &str) -> Option<u64> {
        Held::of_v2(stat).map(|held| held.memory)
    }

    /// Each kind that stays, and each that does not.
    #[test]
    fn what_version_2_holds() {
        assert_eq!(
            v2("anon 300\nfile 660\nshmem 650\ninactive_file 5\nactive_file 5\n"),
            Some(950)
        );
        assert_eq!(
            v2(
                "anon 300\nfile 660\nshmem 0\ninactive_file 655\nactive_file 5\nslab_reclaimable 99\n"
            ),
            Some(300)
        );
        for kind in [
            "sock",
            "slab_unreclaimable",
            "kernel_stack",
            "pagetables",
            "sec_pagetables",
            "percpu",
            "vmalloc",
        ] {
            assert_eq!(v2(&format!("anon 300\n{kind} 650\n")), Some(950), "{kind}");
        }
        assert_eq!(v2("anon 300\nhugetlb 7\n"), Some(307));
        assert_eq!(
            v2("anon 1\nkernel 90\nslab_reclaimable 30\nslab_unreclaimable 20\nkernel_stack 5\n"),
            Some(61)
        );
        assert_eq!(
            v2("anon 1\nkernel 10\nslab_reclaimable 30\n"),
            Some(1),
            "read one after the other"
        );
        let locked = "anon 1\nfile 100\nshmem 10\ninactive_file 20\nactive_file 20\nswapcached 5\nunevictable";
        assert_eq!(
            (v2(&format!("{locked} 60\n")), v2(&format!("{locked} 7\n"))),
            (Some(56), Some(18))
        );
        assert_eq!(
            v2("anon 1\nfile 100\nunevictable 60\n"),
            Some(1),
            "locked, or a list that is not told"
        );
        assert_eq!((v2("file 1\n"), v2(""), v2("anon x")), (None, None, None));
        let most = u64::MAX;
        assert_eq!(
            v2(&format!("anon {most}\nshmem {most}\nkernel {most}\n")),
            Some(most)
        );
    }

    #[test]
    fn what_version_1_holds() {
        let stat = "rss 1\nshmem 1\ntotal_rss 300\ntotal_cache 90\ntotal_shmem 50\ntotal_swap 7\n";
        assert_eq!(
            Held::of_v1(stat, 200, ""),
            Some(Held {
                memory: 550,
                swapped: 7
            })
        );
        let meminfo = "SReclaimable: 1 kB\n";
        assert_eq!(
            Held::of_v1(stat, 1100, meminfo).map(|held| held.memory),
            Some(426),
            "the part that must be unreclaimable"
        );
        assert_eq!(Held::of_v1("rss 1\n", 9, ""), None);
    }

    #[test]
    fn what_the_machine_holds() {
        let meminfo =
            "AnonPages: 5 kB\nShmem: 2 kB\nSUnreclaim: 1 kB\nCached: 900 kB\nSReclaimable: 9 kB\n";
        assert_eq!(
            Held::of_machine(meminfo).map(|held| held.memory),
            Some(8 << 10)
        );
        assert_eq!(Held::of_machine("MemTotal: 9 kB\n"), None);
    }
}
