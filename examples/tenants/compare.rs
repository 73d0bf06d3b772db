//! The comparison: each tenant alone, then all of them under each policy beside those that flood.
//!
//! Every run serves the same arrivals, and each tenant the same requests: alone, those of the others are left out. The
//! caches are filled first, the first quarter of the requests is served, and what comes after it counts.

use indicatif::{ProgressBar, ProgressStyle};
use memcg_report::chart::Size;

use crate::args::{Args, Format};
use crate::policy::Policy;
use crate::report;
use crate::scene::Scene;
use crate::setup::Setup;
use crate::tabulate::{Comparison, Setting};
use crate::waits::Waits;
use crate::work::{Extent, SLICE, Work};
use crate::{Failure, print, write};

/// Each with a seed of its own.
pub(crate) const REPEATS: u64 = 3;

/// The time that it takes with as many requests as it has by default.
const TIME: &str = ": about half a minute on two processors";

/// Of the requests, those that only warm up.
const WARM_UP_PART: u64 = 4;

/// The load of a tenant alone, which shows the share of the budget that it gets, as a multiple of that.
const OFFERED: u64 = 2;

/// Runs it, prints the table, returns what does not add up.
pub(crate) fn run(args: &Args, scene: &Scene) -> Result<Vec<String>, Failure> {
    let calm: Vec<_> = (0..scene.candidates.len()).filter(|&at| !scene.candidates[at].is_noisy()).collect();
    let bar = progress(args, REPEATS * (calm.len() + 2 * Policy::ALL.len()) as u64);
    let mut comparison = Comparison::new(Setting::of(args, scene));
    if args.format == Format::Text && !args.quiet {
        // As long as the requests are those of the default.
        let time = if args.requests.is_none() { TIME } else { "" };
        print(&format!("{} runs over {} tenants{time}.", bar.length().unwrap_or(0), calm.len()))?;
    }
    for seed in (0..REPEATS).map(|repeat| args.seed.wrapping_add(repeat)) {
        let mut bench = Bench { args, scene, seed, faults: Vec::new(), bar: &bar };
        let alone = calm.iter().map(|&tenant| bench.alone(tenant)).collect::<Result<Vec<_>, _>>()?;
        let mut outcomes = Vec::new();
        for policy in Policy::ALL {
            let outcome = bench.together(policy)?;
            let (used_alone, peak_alone) = bench.used_alone(policy)?;
            outcomes.push(Outcome { used_alone, peak: outcome.peak.max(peak_alone), ..outcome });
        }
        for (tenant, Counted { digest, .. }) in alone.iter().enumerate() {
            if outcomes.iter().any(|outcome| outcome.tenants[tenant].digest != *digest) {
                let name = &scene.candidates[tenant].name;
                bench.faults.push(format!("{name}, seed {seed}: not the same requests in each run"));
            }
        }
        comparison.add(&alone, &outcomes);
        comparison.faults.append(&mut bench.faults);
    }
    bar.finish_and_clear();
    print(&match args.format {
        Format::Text => comparison.text(args.columns()),
        Format::Json => comparison.json(),
        Format::Csv => comparison.csv(),
    })?;
    if let Some(path) = &args.svg {
        write(path, &comparison.chart().svg(Size::WIDE))?;
    }
    if let Some(path) = &args.html {
        write(path, &comparison.page())?;
    }
    Ok(comparison.faults)
}

/// A bar over all runs; `indicatif` itself hides it where stderr is no terminal.
fn progress(args: &Args, runs: u64) -> ProgressBar {
    let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new(runs) };
    match ProgressStyle::with_template("{bar:40} {pos} of {len} runs, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// One repeat.
struct Bench<'a> {
    args: &'a Args,
    scene: &'a Scene,
    seed: u64,
    faults: Vec<String>,
    bar: &'a ProgressBar,
}

/// The result of one policy.
pub(crate) struct Outcome {
    /// Those that flood stand behind all others.
    pub(crate) tenants: Vec<Counted>,
    /// The part of the budget that a tenant gets when it is alone.
    pub(crate) used_alone: f64,
    /// The highest usage at any instant.
    pub(crate) peak: u64,
    /// While it counted.
    pub(crate) waits: Waits,
}

/// Look-ups of a tenant that count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    /// Of all requests, in their order.
    digest: u64,
}

impl Bench<'_> {
    /// One tenant by itself in the whole budget.
    fn alone(&mut self, tenant: usize) -> Result<Counted, Failure> {
        let setup = self.setup(Policy::Shared)?;
        setup.service.warm_up(tenant);
        let counted = self.serve(&setup, Some(tenant))?;
        self.check("alone", setup);
        Ok(counted[tenant])
    }

    /// All tenants.
    fn together(&mut self, policy: Policy) -> Result<Outcome, Failure> {
        let setup = self.setup(policy)?;
        setup.largest_first().into_iter().for_each(|tenant| setup.service.warm_up(tenant));
        let tenants = self.serve(&setup, None)?;
        let (peak, waits) = (setup.runtime.root().peak(), setup.service.waits());
        self.check(&policy.to_string(), setup);
        Ok(Outcome { tenants, used_alone: 0.0, peak, waits })
    }

    /// The part of the budget that a tenant gets that is alone and has use for more than all of it.
    fn used_alone(&mut self, policy: Policy) -> Result<(f64, u64), Failure> {
        let setup = self.setup(policy)?;
        let tenant = setup.service.tenants.iter().position(|tenant| tenant.is_noisy()).unwrap_or(0);
        let budget = self.scene.budget;
        setup.service.flood(tenant, budget.saturating_mul(OFFERED))?;
        let part = report::ratio(setup.service.tenants[tenant].group.live(), budget);
        let peak = setup.runtime.root().peak();
        self.check(&format!("one tenant under {policy}"), setup);
        Ok((part, peak))
    }

    fn setup(&self, policy: Policy) -> Result<Setup, Failure> {
        Ok(Setup::new(self.args, self.scene, self.args.rule(policy, self.seed))?)
    }

    /// Serves the warm-up, then the requests that count.
    fn serve(&self, setup: &Setup, only: Option<usize>) -> Result<Vec<Counted>, Failure> {
        let service = &setup.service;
        // A tenant that is alone is served by one worker at a time.
        let threads = if only.is_some() { 1 } else { self.args.threads().min(service.tenants.len()) };
        let all = self.args.requests_compared();
        let warm = all / WARM_UP_PART / SLICE * SLICE;
        let mut counted = vec![Counted::default(); service.tenants.len()];
        for (from, to) in [(0, warm), (warm, all)] {
            let extent = Extent { threads, time: None, requests: Some(to), seed: self.seed, only };
            service.forget_waits();
            Work::new(service, &self.scene.arrivals, None, extent, from).serve()?;
            for (counted, tenant) in counted.iter_mut().zip(&service.tenants) {
                let figures = tenant.turn.lock().cache.figures;
                let (gets, hits) = (figures.gets - counted.gets, figures.hits - counted.hits);
                *counted = Counted { gets, hits, digest: figures.digest };
            }
        }
        Ok(counted)
    }

    /// Checks that follow each run; empties the caches.
    fn check(&mut self, run: &str, setup: Setup) {
        let run = format!("{run}, seed {}", self.seed);
        self.faults.extend(report::close(setup).into_iter().map(|fault| format!("{run}: {fault}")));
        self.bar.inc(1);
    }
}
