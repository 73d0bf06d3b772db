//! Checks after each step.

use std::collections::BTreeSet;

use memcg::{Group, Runtime};

use super::run::{Run, limit, pools_of};
use super::{COUNTERS, Twin};

impl Run {
    /// Checks all that can be seen without settling anything.
    pub(super) fn glance(&self) {
        for (group, handles) in self.handles.iter().enumerate() {
            let Some(handle) = handles.first() else {
                continue;
            };
            assert_eq!(
                handle.is_offline(),
                !self.twin.groups[group].online,
                "{}: {handle:?}",
                self.at
            );
            for counter in 0..COUNTERS {
                self.glance_at(handle, group, counter);
            }
        }
        for (charge, held) in self.charges.iter().zip(&self.twin.held) {
            assert_eq!(charge.bytes(), held.bytes, "{}", self.at);
        }
        if let (Some(runtime), Some(budget)) = (&self.runtime, self.setup.budget) {
            let bound = runtime.root().memory().stocked_bound();
            assert!(
                bound <= budget,
                "{}: bound {bound}, budget {budget}",
                self.at
            );
        }
    }

    fn glance_at(&self, handle: &Group, group: usize, number: usize) {
        let at = &self.at;
        let twin = &self.twin.groups[group];
        let counter = handle.counter(self.counter(number)).expect("declared");
        let usage = counter.usage();
        let forced = counter.forced();
        let max = counter.max();
        let live = self.twin.live(group, number);
        let bound = counter.stocked_bound();
        assert_eq!(max, twin.max[number], "{at}: {handle:?}");
        assert!(
            usage >= live && usage - live <= bound,
            "{at}: {handle:?}: live {live}, bound {bound}"
        );
        assert!(
            forced <= usage && usage - forced <= max,
            "{at}: {handle:?}: forced {forced}"
        );
        assert_eq!(
            counter.refused_count(),
            twin.refused[number],
            "{at}: {handle:?}"
        );
        assert!(counter.peak() >= usage, "{at}: {handle:?}");
    }

    /// Everything, after dying groups have been settled.
    pub(super) fn look(&self) {
        for (group, handles) in self.handles.iter().enumerate() {
            if let Some(handle) = handles.first() {
                self.look_at(handle, group);
            }
        }
        for (charge, held) in self.charges.iter().zip(&self.twin.held) {
            assert_eq!(charge.group().id(), self.ids[held.group], "{}", self.at);
        }
        if let Some(runtime) = &self.runtime {
            runtime.settle();
            self.look_at_all(runtime);
        }
    }

    fn look_at(&self, handle: &Group, group: usize) {
        let at = &self.at;
        let twin = &self.twin.groups[group];
        assert_eq!(
            (handle.id(), &*handle.name()),
            (self.ids[group], twin.name.as_str()),
            "{at}"
        );
        assert_eq!(handle.path(), self.twin.path(group), "{at}");
        assert_eq!(
            handle.parent().map(|parent| parent.id()),
            twin.parent.map(|parent| self.ids[parent]),
            "{at}"
        );
        let limits = handle.limits();
        assert_eq!(
            (limits.max, handle.inspect().min()),
            (Some(limit(twin.max[0])), twin.min),
            "{at}: {handle:?}"
        );
        for number in 0..COUNTERS {
            let counter = handle.counter(self.counter(number)).expect("declared");
            // In this order: a read of what is stocked settles dying groups.
            let stocked = counter.stocked();
            let usage = counter.usage();
            let live = self.twin.live(group, number);
            assert_eq!(
                (counter.live(), usage),
                (live, live + stocked),
                "{at}: {handle:?}"
            );
            assert!(
                stocked <= counter.stocked_bound(),
                "{at}: {handle:?}: {stocked} stocked"
            );
        }
        let online = |twin: &Twin, group: usize| -> BTreeSet<_> {
            twin.children(group)
                .filter(|&child| twin.groups[child].online)
                .map(|child| self.ids[child])
                .collect()
        };
        let children: BTreeSet<_> = handle.children().iter().map(Group::id).collect();
        assert_eq!(
            children,
            online(&self.twin, group),
            "{at}: children of {handle:?}"
        );
        let protected: u64 = handle
            .children()
            .iter()
            .map(|child| child.usage().min(child.inspect().min()))
            .sum();
        assert_eq!(
            handle.memory().children_min_usage(),
            protected,
            "{at}: {handle:?}"
        );
    }

    fn look_at_all(&self, runtime: &Runtime) {
        let at = &self.at;
        let twin = &self.twin;
        let verdict = runtime.verify();
        assert!(verdict.is_ok(), "{at}: {verdict}");
        assert_eq!(verdict.audited(), self.setup.audit, "{at}");
        let online: Vec<usize> = twin.online_below(0).collect();
        assert_eq!(runtime.group_count(), online.len(), "{at}");
        assert_eq!(
            runtime.dying_count(),
            twin.there().count() - online.len(),
            "{at}: groups that are not done with"
        );
        for (group, &id) in self.ids.iter().enumerate() {
            let found = runtime.find(id);
            assert_eq!(found.is_some(), twin.is_there(group), "{at}: {id}");
            let path = twin.path(group);
            if twin.groups[group].online {
                assert_eq!(runtime.group(&path), found, "{at}: {path}");
            } else {
                assert!(
                    runtime.group(&path).is_none_or(|other| other.id() != id),
                    "{at}: {path} is offline"
                );
            }
        }
        self.look_at_pools(runtime);
        let rows: BTreeSet<_> = runtime
            .snapshot()
            .rows()
            .iter()
            .map(|row| (row.path.clone(), row.live, row.max))
            .collect();
        let expected = online.iter().map(|&group| {
            (
                twin.path(group),
                twin.live(group, 0),
                twin.groups[group].max[0],
            )
        });
        assert_eq!(rows, expected.collect(), "{at}: the table");
    }

    fn look_at_pools(&self, runtime: &Runtime) {
        let at = &self.at;
        let there = self.twin.there().count() as u64;
        for row in runtime.pools().rows() {
            assert_eq!(
                row.align,
                if self.setup.packed { 8 } else { 128 },
                "{at}: {row:?}"
            );
            assert_eq!(
                (row.given, row.waste),
                (row.asked.next_multiple_of(row.align), row.given - row.asked),
                "{at}"
            );
            assert!(
                row.objects_per_chunk * row.given <= row.chunk,
                "{at}: {row:?}"
            );
            if self.live.is_some() {
                assert_eq!(
                    row.live + row.free,
                    (row.chunks * row.objects_per_chunk) as u64,
                    "{at}: {row:?}"
                );
            }
        }
        let live = pools_of(runtime)[0];
        match &self.live {
            // That of a root is counted already.
            Some(before) => assert_eq!(
                live,
                before[0] + there - 1,
                "{at}: one object for each group"
            ),
            None => assert!(live >= there, "{at}: {live} objects for {there} groups"),
        }
    }
}
