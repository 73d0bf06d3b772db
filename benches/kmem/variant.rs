//! Ways of accounting: none, the patch series', and the library's.
//!
//! All of them allocate from the same allocator. The series' charge the group once through the
//! library, which keeps credit as the kernel does, and add to the library's statistics, one
//! addition for each update that the series' would make; they have no tree of statistics by node to
//! pay for, and get that for nothing.

#![cfg(not(loom))]

use memcg::Bytes;
use std::hint::black_box;
use std::time::{Duration, Instant};

use memcg::StatKey;
use memcg::kmem::{NodeOf, PageNode};
use memcg_kmem::PerCpuBytes;

use super::machine::Machine;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variant {
    None,
    /// Upstream: a charge, and one statistic; no node.
    GroupOnly,
    /// v1: each processor's page is looked up and accounted.
    PerPage,
    /// (a): each processor's page is looked up, each node accounted.
    PerNode,
    /// (b): the same from a cache of pages.
    Cached,
    /// (c): with one node nothing is looked up; with more as (a).
    OneNode,
    Ours,
}

impl Variant {
    /// Those that are compared with none.
    pub(crate) const ALL: [Variant; 6] = [
        Variant::GroupOnly,
        Variant::PerPage,
        Variant::PerNode,
        Variant::Cached,
        Variant::OneNode,
        Variant::Ours,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Variant::None => "none",
            Variant::GroupOnly => "group_only",
            Variant::PerPage => "per_page",
            Variant::PerNode => "per_node",
            Variant::Cached => "cached",
            Variant::OneNode => "one_node",
            Variant::Ours => "ours",
        }
    }
}

/// Bytes by node.
type ByNode = [u64; 8];

impl Machine {
    /// So many allocations, each freed at once.
    pub(crate) fn run(&self, variant: Variant, size: usize, times: u64) -> Duration {
        match variant {
            Variant::None => self.time(times, || self.allocate(size)),
            Variant::Ours => self.time(times, || {
                self.allocator
                    .allocate(Machine::layout(black_box(size)), &self.group)
                    .expect("no limit")
            }),
            Variant::GroupOnly => self.charged(
                size,
                times,
                || self.group.stat_add(StatKey::PERCPU, self.full(size)),
                || {
                    self.group.stat_add(StatKey::PERCPU, -self.full(size));
                },
            ),
            Variant::PerPage => self.walked(size, times, |bytes, sign| {
                self.account_pages(bytes, size, sign)
            }),
            Variant::OneNode if self.model.nodes == 1 => self.run(Variant::GroupOnly, size, times),
            Variant::PerNode | Variant::OneNode => self.walked(size, times, |bytes, sign| {
                self.account_nodes(bytes, size, sign, |address, _| self.walk.look_up(address));
            }),
            Variant::Cached => self.walked(size, times, |bytes, sign| {
                self.account_nodes(bytes, size, sign, |_, page| usize::from(self.cache[page]));
            }),
        }
    }

    /// The same by asking this machine's kernel for the pages of each object, all at once.
    pub(crate) fn run_asking(&self, node_of: &dyn NodeOf, size: usize, times: u64) -> Duration {
        let ask = |bytes: &PerCpuBytes, sign: i64| {
            let mut pages = [0; 256];
            let mut found = [PageNode::Untouched; 256];
            let first = self.first(bytes);
            let many = self.model.processors.min(pages.len());
            for (unit, page) in pages[..many].iter_mut().enumerate() {
                *page = (first + unit * self.unit) & !4_095;
            }
            node_of.look_up(&pages[..many], &mut found[..many]);
            for page in &found[..many] {
                black_box(page);
                self.group.stat_add(StatKey::PERCPU, sign * size as i64);
            }
        };
        self.walked(size, times, ask)
    }

    #[inline]
    fn allocate(&self, size: usize) -> PerCpuBytes {
        self.allocator
            .allocate_uncharged(Machine::layout(black_box(size)))
            .expect("memory")
    }

    #[inline(always)]
    fn time<R>(&self, times: u64, work: impl Fn() -> R) -> Duration {
        let start = Instant::now();
        for _ in 0..times {
            drop(black_box(work()));
        }
        start.elapsed()
    }

    #[inline(always)]
    fn charged(
        &self,
        size: usize,
        times: u64,
        account: impl Fn(),
        unaccount: impl Fn(),
    ) -> Duration {
        self.time(times, || {
            let charge = self
                .group
                .charge(Bytes(self.full_size(size)))
                .expect("no limit");
            let bytes = black_box(self.allocate(size));
            account();
            drop(black_box(bytes));
            unaccount();
            drop(black_box(charge));
        })
    }

    #[inline(always)]
    fn walked(&self, size: usize, times: u64, account: impl Fn(&PerCpuBytes, i64)) -> Duration {
        self.time(times, || {
            let charge = self
                .group
                .charge(Bytes(self.full_size(size)))
                .expect("no limit");
            let bytes = black_box(self.allocate(size));
            account(&bytes, 1);
            account(&bytes, -1);
            drop(black_box(bytes));
            drop(black_box(charge));
        })
    }

    fn full(&self, size: usize) -> i64 {
        self.full_size(size).cast_signed()
    }

    fn first(&self, bytes: &PerCpuBytes) -> usize {
        bytes.as_ptr(0).map_or(0, |copy| copy.addr().get())
    }

    /// v1: one update for each processor's page; the metadata is charged whole to one.
    #[inline]
    fn account_pages(&self, bytes: &PerCpuBytes, size: usize, sign: i64) {
        let first = self.first(bytes);
        for unit in 0..self.model.processors {
            black_box(self.walk.look_up(first + unit * self.unit));
            self.group.stat_add(StatKey::PERCPU, sign * size as i64);
        }
        let copies = (size * self.model.processors) as i64;
        self.group
            .stat_add(StatKey::PERCPU, sign * (self.full(size) - copies));
    }

    /// (a) and (b): bytes gathered by node, one update for each. An object is wholly on the node of
    /// its first page, as the series has it; its metadata is looked up page by page.
    #[inline(always)]
    fn account_nodes(
        &self,
        bytes: &PerCpuBytes,
        size: usize,
        sign: i64,
        node_of: impl Fn(usize, usize) -> usize,
    ) {
        let mut by_node: ByNode = [0; 8];
        let first = self.first(bytes);
        let in_unit = first - self.data;
        let pages = self.unit / 4_096;
        for unit in 0..self.model.processors {
            let node = node_of(first + unit * self.unit, unit * pages + in_unit / 4_096);
            by_node[node % 8] += size as u64;
        }
        let mut at = in_unit / self.allocator.shape().granule() * self.allocator.shape().word();
        let shape = self.words;
        let end = at + (self.full_size(size) as usize - size * self.model.processors);
        while at < end {
            let next = ((at / 4_096 + 1) * 4_096).min(end);
            let node = node_of(shape + at, self.model.processors * pages + at / 4_096);
            by_node[node % 8] += (next - at) as u64;
            at = next;
        }
        for bytes in by_node.into_iter().filter(|bytes| *bytes > 0) {
            self.group.stat_add(StatKey::PERCPU, sign * bytes as i64);
        }
    }
}
