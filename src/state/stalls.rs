//! The time that chargers of a group stood still for memory: in total and on average.
//!
//! Each figure is a function of the moments at which chargers stop and go on. The caller passes
//! each moment, in nanoseconds since a start of its own, so this file reads no clock. Between two
//! moments a group either stands still or does not: the time between them goes into the total, and
//! into each period of two seconds that it touches. So whole periods may pass before a thread
//! looks, and the averages are those of a look at the end of each.
//!
//! The averages are those of `kernel/sched/psi.c`: each period moves them towards its own share, by
//! e^(-2/10), e^(-2/60) and e^(-2/300).

/// One period of the averages: the kernel's PSI_FREQ.
pub(crate) const PERIOD: u64 = 2_000_000_000;

/// The windows of the averages, in seconds.
pub(crate) const AVERAGED_OVER: [u32; 3] = [10, 60, 300];

/// The unit of the averages: hundredths of a per cent.
const WHOLE: f64 = 10_000.0;

/// Chargers that stand still, and for how long there were any.
#[derive(Clone, Debug, Default)]
pub(crate) struct StallShare {
    /// Chargers that stand still now.
    standing: u64,
    /// Nanoseconds in which at least one stood still.
    total: u64,
    /// The part of it in the period that is not over.
    in_period: u64,
    /// Shares of the time, from 0 to 1, as of the last period that is over.
    averages: [f64; 3],
}

/// A group's record of stalls of its chargers and of those below.
#[derive(Default)]
pub(crate) struct StallTimes {
    some: StallShare,
    full: StallShare,
    /// The moment up to which all figures are.
    until: u64,
}

impl StallShare {
    /// From `from` to `now` nothing has changed.
    fn advance(&mut self, from: u64, now: u64) {
        let is_on = self.standing > 0;
        let time = |begin: u64, end: u64| if is_on { end - begin } else { 0 };
        let first = from / PERIOD;
        let last = now / PERIOD;
        self.total += time(from, now);
        // Mostly. A stall is far shorter than a period.
        if first == last {
            self.in_period += time(from, now);
            return;
        }
        let ended = self.in_period + time(from, (first + 1) * PERIOD);
        self.decay(ended as f64 / PERIOD as f64, 1);
        // The periods in between are all alike, so a group that nobody has looked at for a day
        // costs one power and no loop.
        self.decay(if is_on { 1.0 } else { 0.0 }, last - first - 1);
        self.in_period = time(last * PERIOD, now);
    }

    /// So many periods are over, each with the same share.
    fn decay(&mut self, share: f64, periods: u64) {
        let periods = i32::try_from(periods).unwrap_or(i32::MAX);
        for (average, over) in self.averages.iter_mut().zip(AVERAGED_OVER) {
            let kept = (-(PERIOD as f64 / 1e9) / f64::from(over))
                .exp()
                .powi(periods);
            *average = share + (*average - share) * kept;
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// In hundredths of a per cent.
    pub(crate) fn averages(&self) -> [u32; 3] {
        self.averages
            .map(|average| (average * WHOLE).round() as u32)
    }
}

impl StallTimes {
    /// The figures as of `now`, which is no earlier than any moment before.
    pub(crate) fn advance(&mut self, now: u64) {
        self.some.advance(self.until, now);
        self.full.advance(self.until, now);
        self.until = now;
    }

    /// A charger stops now, or goes on. `full`: a limit of this group, or of one above, holds it
    /// up.
    pub(crate) fn change(&mut self, now: u64, stops: bool, full: bool) {
        self.advance(now);
        let change = |share: &mut StallShare| {
            share.standing = if stops {
                share.standing + 1
            } else {
                share.standing.saturating_sub(1)
            };
        };
        change(&mut self.some);
        if full {
            change(&mut self.full);
        }
    }

    /// A charger stood still from one moment to a later one.
    pub(crate) fn stood(&mut self, from: u64, now: u64, full: bool) {
        self.change(from, true, full);
        self.change(now, false, full);
    }

    pub(crate) fn some(&self) -> &StallShare {
        &self.some
    }

    pub(crate) fn full(&self) -> &StallShare {
        &self.full
    }
}
