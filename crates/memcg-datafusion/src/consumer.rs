//! Kinds of DataFusion's consumers: the pool knows some of them by their names.

use datafusion_execution::memory_pool::MemoryConsumer;

/// Names that DataFusion gives the two consumers of a sort, before the partition.
pub(crate) const SORTER: &str = "ExternalSorter";
const MERGE: &str = "ExternalSorterMerge";
const EXCHANGE: &str = "RepartitionExec";
const BOUNDED: &str = "OrderedFinalAggregateStream";
const GROUPED: &str = "GroupedHashAggregateStream";
const REPLAYING: [&str; 2] = ["FinalHashAggregateStream", "SingleHashAggregateStream"];

/// One of the two consumers of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It holds what was read, and can spill it.
    Sorter,
    /// It holds what is merged.
    Merge,
}

/// Behaviour of a consumer beside what it says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing: it spills where it is refused, if it says that it can.
    Other,
    /// One of the two of a sort.
    Sort(Part),
    /// An exchange: it has a batch in its hands that it spills where it is refused, and gives
    /// nothing of what it holds.
    Exchange,
    /// An aggregate of sorted rows: DataFusion calls it spillable for the share that its fair pool
    /// then gives it, and it fails where it is refused.
    Bounded,
    /// An aggregate that grows in order to spill.
    Grouped,
    /// An aggregate that cannot spill again once it reads back what it has spilled.
    Replaying,
}

impl Part {
    #[inline]
    fn of(consumer: &MemoryConsumer) -> Option<Part> {
        if consumer.can_spill() {
            consumer
                .name()
                .strip_prefix(SORTER)?
                .starts_with('[')
                .then_some(Part::Sorter)
        } else {
            consumer.name().starts_with(MERGE).then_some(Part::Merge)
        }
    }
}

impl Kind {
    /// The first letter decides for most consumers: this is called for each growth.
    #[inline(always)]
    pub(crate) fn of(consumer: &MemoryConsumer) -> Kind {
        let name = consumer.name();
        match name.as_bytes().first() {
            Some(b'E') => Part::of(consumer).map_or(Kind::Other, Kind::Sort),
            // Its merge of sorted inputs has the same name, and cannot spill.
            Some(b'R') if consumer.can_spill() && name.starts_with(EXCHANGE) => Kind::Exchange,
            Some(b'O') if name.starts_with(BOUNDED) => Kind::Bounded,
            Some(b'G') if name.starts_with(GROUPED) => Kind::Grouped,
            Some(b'F') if name.starts_with(REPLAYING[0]) => Kind::Replaying,
            Some(b'S') if name.starts_with(REPLAYING[1]) => Kind::Replaying,
            _ => Kind::Other,
        }
    }

    /// Which part of a sort it is.
    #[inline]
    pub(crate) fn part(self) -> Option<Part> {
        if let Kind::Sort(part) = self {
            Some(part)
        } else {
            None
        }
    }

    /// True if a refusal of this consumer makes it give memory back.
    #[inline]
    pub(crate) fn gives_back(self, consumer: &MemoryConsumer) -> bool {
        consumer.can_spill() && !matches!(self, Kind::Exchange | Kind::Bounded)
    }

    /// True if a pool that spills on demand charges the consumer beside its spillable ones: a
    /// sort's merge takes over what its sorter holds.
    #[inline]
    pub(crate) fn is_among_spillable(self, consumer: &MemoryConsumer) -> bool {
        self.part().is_some() || self.gives_back(consumer)
    }
}

/// True if the consumer is charged by what it says of itself alone, while no consumer is asked to
/// spill and no sort spills. The first letter tells the others apart, so this may be false of one
/// that is.
#[inline]
pub(crate) fn is_as_it_says(consumer: &MemoryConsumer) -> bool {
    match consumer.name().as_bytes().first() {
        Some(b'O' | b'R') => !consumer.can_spill(),
        Some(b'E') => consumer.can_spill(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name() {
        let kind =
            |name: &str, can_spill| Kind::of(&MemoryConsumer::new(name).with_can_spill(can_spill));
        assert_eq!(kind("ExternalSorter[0]", true), Kind::Sort(Part::Sorter));
        assert_eq!(
            kind("ExternalSorterMerge[0]", false),
            Kind::Sort(Part::Merge)
        );
        assert_eq!(kind("RepartitionExec[1]", true), Kind::Exchange);
        assert_eq!(kind("RepartitionExec[Merge 1]", false), Kind::Other);
        assert_eq!(
            kind("OrderedFinalAggregateStream[0] (a)", true),
            Kind::Bounded
        );
        assert_eq!(
            kind("GroupedHashAggregateStream[0] (median(a))", true),
            Kind::Grouped
        );
        assert_eq!(kind("FinalHashAggregateStream[0]", true), Kind::Replaying);
        assert_eq!(kind("SingleHashAggregateStream[0]", true), Kind::Replaying);
        for other in [
            "",
            "E",
            "ExternalSorter",
            "ExternalSorterMerge[0]",
            "SortPreservingMergeExec[0]",
            "Repartition",
        ] {
            assert_eq!(kind(other, true), Kind::Other, "{other}");
        }
        assert_eq!(kind("ExternalSorter[0]", false), Kind::Other);
    }

    /// The decision by the first letter is what the whole name says.
    #[test]
    fn the_first_letter_is_never_wrong() {
        let names = [
            SORTER,
            MERGE,
            EXCHANGE,
            BOUNDED,
            GROUPED,
            REPLAYING[0],
            REPLAYING[1],
            "HashJoinInput",
            "Other",
            "R",
            "",
        ];
        let consumers = names.iter().flat_map(|name| {
            [true, false].map(|can_spill| {
                MemoryConsumer::new(format!("{name}[0]")).with_can_spill(can_spill)
            })
        });
        let mut seen = [0, 0];
        for consumer in consumers {
            let kind = Kind::of(&consumer);
            let is_plain = kind != Kind::Sort(Part::Merge)
                && kind.is_among_spillable(&consumer) == consumer.can_spill();
            assert!(is_plain || !is_as_it_says(&consumer), "{consumer:?}");
            seen[usize::from(is_as_it_says(&consumer))] += 1;
        }
        assert!(seen.iter().all(|&seen| seen > 3), "{seen:?}");
    }

    #[test]
    fn who_gives_back() {
        let of = |name: &str, can_spill| {
            let consumer = MemoryConsumer::new(name).with_can_spill(can_spill);
            let kind = Kind::of(&consumer);
            (
                kind.gives_back(&consumer),
                kind.is_among_spillable(&consumer),
            )
        };
        assert_eq!(of("HashJoinInput", false), (false, false));
        assert_eq!(of("Rows", true), (true, true));
        assert_eq!(of("ExternalSorterMerge[0]", false), (false, true));
        assert_eq!(of("RepartitionExec[1]", true), (false, false));
        assert_eq!(of("OrderedFinalAggregateStream[0]", true), (false, false));
    }
}
