//! The cost of a charge with the stock and without, while the service runs.
//!
//! Time is cut into rounds. At the start of each round all workers leave their requests for a
//! moment and charge a group with a stock, then one without, four levels deep. The groups stand in
//! a runtime of their own: that of the service is audited, and an audited charge takes the careful
//! path, which is not what a user pays.

use std::hint::black_box;
use std::time::{Duration, Instant};

use memcg::errors::CreateError;
use memcg::{BuildError, Bytes, Group, Limit, Limits, Runtime};
use thiserror::Error;

/// From the start of one round to the start of the next.
const ROUND: Duration = Duration::from_millis(100);

/// Of a round, the time with the stock, and the same again without.
const SLICE: Duration = Duration::from_millis(2);

/// Charges between two looks at the clock.
const BLOCK: u32 = 512;

/// The bytes of a charge: a middling entry.
const BYTES: u64 = 512;

/// Far above what the probe charges: no limit is near.
const MAX: u64 = 1 << 40;

/// The two groups.
pub(crate) struct Probe {
    pub(crate) runtime: Runtime,
    stock: Group,
    no_stock: Group,
}

/// The probe's groups could not be made.
#[derive(Debug, Error)]
pub(crate) enum ProbeError {
    #[error(transparent)]
    Runtime(#[from] BuildError),
    #[error(transparent)]
    Group(#[from] CreateError),
}

/// Nanoseconds for a charge and its drop, one figure for each slice.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    stock: Vec<f64>,
    no_stock: Vec<f64>,
}

impl Probe {
    pub(crate) fn new(batch: Bytes) -> Result<Self, ProbeError> {
        let builder = Runtime::builder().max(Limit::Bytes(MAX));
        // A batch of 0 switches the stock of the service off; here it is to be measured.
        let runtime = if batch == Bytes(0) { builder } else { builder.batch(batch) }.build()?;
        let service = runtime.root().create("service", Limits::new())?;
        let tenant = service.create("tenant", Limits::new())?;
        let (stock, no_stock) = (tenant.create("stock", Limits::new())?, tenant.create("no_stock", Limits::new())?);
        no_stock.memory().set_batch(0);
        Ok(Self { runtime, stock, no_stock })
    }
}

/// One worker's way through the rounds.
pub(crate) struct Rounds<'a> {
    probe: Option<&'a Probe>,
    start: Instant,
    /// Rounds that have begun.
    begun: u32,
    /// Time spent here and not on requests.
    pub(crate) spent: Duration,
    pub(crate) costs: Costs,
}

impl<'a> Rounds<'a> {
    /// `start` is the same for all workers, which makes their rounds the same.
    pub(crate) fn new(probe: Option<&'a Probe>, start: Instant) -> Self {
        Self { probe, start, begun: 0, spent: Duration::ZERO, costs: Costs::default() }
    }

    /// Takes part in a round that begins now. A thread that comes too late waits for the next, but none misses the
    /// first: the shortest run has its figures.
    pub(crate) fn pass(&mut self, now: Instant) {
        let Some(probe) = self.probe else { return };
        let elapsed = now - self.start;
        if elapsed < ROUND * self.begun {
            return;
        }
        let round = u32::try_from(elapsed.as_millis() / ROUND.as_millis()).unwrap_or(u32::MAX - 1);
        let (is_first, begin) = (self.begun == 0, self.start + ROUND * round);
        self.begun = round + 1;
        if now - begin < SLICE || is_first {
            self.costs.stock.push(slice(&probe.stock, begin + SLICE));
            self.costs.no_stock.push(slice(&probe.no_stock, begin + SLICE * 2));
            self.spent += now.elapsed();
        }
    }
}

/// Charges until then, one block at least; the median of the blocks.
fn slice(group: &Group, until: Instant) -> f64 {
    let mut blocks = Vec::new();
    loop {
        let begin = Instant::now();
        for _ in 0..BLOCK {
            drop(black_box(group.try_charge(Bytes(black_box(BYTES)))));
        }
        let end = Instant::now();
        blocks.push((end - begin).as_nanos() as f64 / f64::from(BLOCK));
        if end >= until {
            return median(&mut blocks);
        }
    }
}

impl Costs {
    pub(crate) fn append(&mut self, mut other: Self) {
        self.stock.append(&mut other.stock);
        self.no_stock.append(&mut other.no_stock);
    }

    /// With the stock.
    pub(crate) fn stock(&mut self) -> f64 {
        median(&mut self.stock)
    }

    /// Without.
    pub(crate) fn no_stock(&mut self) -> f64 {
        median(&mut self.no_stock)
    }

    /// Slices of each kind.
    pub(crate) fn slices(&self) -> usize {
        self.stock.len()
    }
}

/// The upper one of two; 0 of nothing.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
