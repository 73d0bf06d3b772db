//! Nodes and statistics of counters, as their configuration declares them.
//!
//! A tree that declares any is a tree of groups without names. One that declares none is a tree of
//! bare counters. No `Group` names such a group. So where its counter's last handle is gone, no
//! thread charges it, and what is still charged to it belongs to no guard.

use std::any::Any;
use std::slice;

use crate::counter::config::{CounterConfig, TreeExtension};
use crate::counter::handle::Handle;
use crate::counter::object::Object;
use crate::counter::retire;
use crate::counter::slow_path::SlowPath;
use crate::hierarchy::declared_counters::DeclaredCounters;
use crate::hierarchy::group_tree::{GroupConfig, GroupSettings};
use crate::hierarchy::stats;
use crate::lifecycle::create::{self, NewGroup, NotCreated};
use crate::lifecycle::offline;
use crate::numa::config::Numa;
use crate::numa::{NodeId, Topology};
use crate::pool::NoMemory;
use crate::stat::coordinator::{Coordinator, STAT_BATCH};
use crate::stat::item::{ITEMS_MAX, StatItems};
use crate::stat::{StatKey, Unit};
use crate::state::name::GroupName;
use crate::sync::Arc;
use crate::thread::directory::Header;

/// What was declared for a tree of counters that belongs to no runtime.
#[derive(Clone, Default)]
struct DeclaredTree {
    /// `None`: one node.
    topology: Option<Topology>,
    items: Arc<StatItems>,
}

impl TreeExtension for DeclaredTree {
    fn root(&self, config: &CounterConfig) -> &'static Header {
        let topology = self.topology.clone().unwrap_or_else(Topology::one_node);
        let nodes: Vec<NodeId> = topology.nodes().collect();
        let settings = GroupSettings::DEFAULT;
        let stats = Coordinator::new(
            Arc::clone(&self.items),
            &nodes,
            settings.pool_align,
            STAT_BATCH,
        );
        let numa = Numa::new(topology, None, Box::default());
        let groups = GroupConfig {
            settings,
            further: DeclaredCounters::new(Vec::new(), 0),
            stats,
            numa,
        };
        let _path = SlowPath::enter();
        let root = create::root_group(groups, slice::from_ref(config), false)
            .unwrap_or_else(|refused| refused.abort());
        root.into_raw().header
    }

    #[allow(unsafe_code)]
    fn child(&self, parent: &'static Header) -> &'static Header {
        let settings = NewGroup {
            wanted: &[],
            covers: false,
            share: 0,
            has_pressure: false,
            set_rest: &|_| (),
        };
        // SAFETY: the caller keeps the parent.
        let parent = unsafe { Object::of(parent).kept() };
        match create::create(parent, GroupName::Unnamed, &settings) {
            Ok(child) => child.into_raw().header,
            Err(NotCreated::Memory(bytes)) => NoMemory { bytes }.abort(),
            Err(refused) => {
                unreachable!("no name, no limit, and a parent that is online: {refused:?}")
            }
        }
    }

    fn end(&self, counter: &'static Header) {
        let group = Handle::adopt(Object::of(counter));
        let _path = SlowPath::enter();
        retire::uncharge_all(&group);
        let gone = offline::offline(group.tree(), &group);
        debug_assert!(gone.is_ok(), "a counter outlives its children");
    }

    #[allow(unsafe_code)]
    fn stat_counts(&self, counter: &'static Header) -> [u64; 6] {
        // SAFETY: the caller keeps the counter.
        stats::coordinator(unsafe { Object::of(counter).kept() })
            .counts
            .all()
    }
}

impl CounterConfig {
    fn declare<T>(&mut self, change: impl FnOnce(&mut DeclaredTree) -> T) -> T {
        let before: Option<Arc<dyn Any + Send + Sync>> =
            self.extension.take().map(|extension| extension as _);
        // `DeclaredTree` is the only extension.
        let mut declared = before
            .and_then(|before| before.downcast().ok())
            .unwrap_or_default();
        let done = change(Arc::make_mut(&mut declared));
        self.extension = Some(declared);
        done
    }

    /// Declares the built-in items of the statistics ([`StatKey`]): the counters of the tree get a
    /// [`stat_add`](crate::PageCounter::stat_add), reads and a flush. [`stat`](Self::stat) and
    /// [`topology`](Self::topology) declare them, too.
    ///
    /// A tree that declares nothing pays for nothing. A charge costs the same either way. A counter
    /// with statistics has a group's object, about half a kilobyte, and makes and ends as a group
    /// does.
    ///
    /// ```
    /// # use memcg::{CounterConfig, Freshness, PageCounter, StatKey};
    /// let written = |config| {
    ///     let machine = PageCounter::root(config);
    ///     machine.stat_add(StatKey::SOCK, 100);
    ///     machine.read(Freshness::Exact).get(StatKey::SOCK)
    /// };
    /// assert_eq!(written(CounterConfig::new().statistics()), 100);
    /// assert_eq!(written(CounterConfig::new()), 0, "not declared");
    /// ```
    pub fn statistics(mut self) -> Self {
        self.declare(|_| ());
        self
    }

    /// Declares an item of the statistics. The tree then has the built-in items, too: 64 together
    /// at most. An item beyond those is no tree's: what is added to it is counted in
    /// [`Counts::foreign_stats`](crate::figures::TreeCounts::foreign_stats) only.
    ///
    /// A clone of the configuration knows what was declared before it was made. What either
    /// declares later is known to its own trees only.
    ///
    /// ```
    /// # use memcg::{CounterConfig, Freshness, PageCounter, Unit};
    /// let mut config = CounterConfig::new();
    /// let rows = config.stat("rows_scanned", Unit::Events);
    /// let machine = PageCounter::root(config);
    /// machine.child().stat_add(rows, 1_000);
    /// assert_eq!(machine.read(Freshness::Exact).get(rows), 1_000);
    /// assert!(machine.items().any(|item| item.name == "rows_scanned"));
    /// ```
    pub fn stat(&mut self, name: &str, unit: Unit) -> StatKey {
        self.declare(|declared| {
            if declared.items.len() < ITEMS_MAX {
                Arc::make_mut(&mut declared.items).declare(name, unit, false)
            } else {
                StatItems::default().declare(name, unit, false)
            }
        })
    }

    /// Declares the memory nodes that the counters account for
    /// ([`precharge`](crate::PageCounter::precharge)), and the statistics.
    ///
    /// ```
    /// use memcg::{CounterConfig, PageCounter, StatKey};
    /// use memcg::kmem::{NodeId, Placement, Topology};
    ///
    /// let machine = Topology::fixed([(NodeId::new(0), vec![0, 1]), (NodeId::new(2), vec![])])?;
    /// let memory = PageCounter::root(CounterConfig::bytes().topology(machine));
    /// let _held = memory.precharge(100)?.account(&Placement::on(NodeId::new(2), 100));
    /// assert_eq!(memory.numa_stat(StatKey::KERNEL, memcg::Freshness::Exact).to_string(), "N0=0 N2=100");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn topology(mut self, topology: Topology) -> Self {
        self.declare(|declared| declared.topology = Some(topology));
        self
    }

    /// Declares so many memory nodes, numbered from 0, with one processor each. 0 counts as 1.
    ///
    /// ```
    /// # use memcg::{CounterConfig, PageCounter, StatKey};
    /// let memory = PageCounter::root(CounterConfig::bytes().nodes(2));
    /// assert_eq!(memory.numa_stat(StatKey::ANON, memcg::Freshness::Exact).iter().count(), 2);
    /// ```
    pub fn nodes(self, nodes: u16) -> Self {
        let numbered = (0..nodes.max(1)).map(|node| (NodeId::new(node), [usize::from(node)]));
        match Topology::fixed(numbered) {
            Ok(topology) => self.topology(topology),
            Err(_) => self,
        }
    }
}
