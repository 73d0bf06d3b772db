//! The job: all tenants under one policy, watched while they are served, and a report of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use memcg::Bytes;
use memcg_report::chart::Size;
use memcg_report::terminal::InPlace;

use crate::args::{Args, Format};
use crate::cache::Corrupt;
use crate::history::History;
use crate::live::{Live, Looks};
use crate::probe::Probe;
use crate::report::{Measured, Report};
use crate::sampler::{self, End, Samples};
use crate::scene::Scene;
use crate::setup::Setup;
use crate::work::{Done, Extent, Work};
use crate::{Failure, memory, print, write};

/// Sets up, serves, reports; returns what does not add up.
pub(crate) fn run(args: &Args, scene: &Scene) -> Result<Vec<String>, Failure> {
    if args.live().is_some() {
        print(&beginning(args, scene))?;
    }
    let rule = args.rule(args.policy, args.seed);
    let mut setup = Setup::new(args, scene, rule)?;
    let probe = Probe::new(args.batch)?;
    let threads = args.threads().min(setup.service.tenants.len());
    let extent = Extent { threads, time: args.time(), requests: args.requests, seed: args.seed, only: None };
    let work = Work::new(&setup.service, &scene.arrivals, Some(&probe), extent, 0);

    let rss_before = memory::resident();
    let mut history = History::new(args.html.is_some() || args.svg.is_some());
    let (done, samples, looks) = {
        #[cfg(feature = "serve")]
        let _serving = args.serve.as_ref().map(|path| serve(&setup, path)).transpose()?;
        watched(args, scene, &setup, &work, &mut history)?
    };
    let measured = Measured { done, samples, looks, rss_before };
    let setting = setup.setting(scene, rule, threads, args.batch());
    let mut report = Report::gather(setting, &mut setup, &probe, measured);
    if args.is_main_job() {
        report.expect_main_job();
    }
    print(&match args.format {
        Format::Text => report.text(args),
        Format::Json => report.json(),
        Format::Csv => report.csv(),
    })?;
    if let Some(path) = &args.svg {
        write(path, &history.usage(&report).svg(Size::WIDE))?;
    }
    if let Some(path) = &args.html {
        write(path, &history.page(&report))?;
    }
    Ok(report.faults)
}

/// Answers questions about the groups until the result is dropped.
#[cfg(feature = "serve")]
fn serve(setup: &Setup, path: &std::path::Path) -> Result<memcg_observe::Serving, Failure> {
    let endpoint = memcg_observe::Endpoint::new(&setup.runtime).allow_set(true);
    endpoint.serve(path).map_err(|fault| Failure::Serve { path: path.to_path_buf(), fault })
}

/// The run that is about to begin, and its time.
fn beginning(args: &Args, scene: &Scene) -> String {
    let (tenants, budget) = (scene.candidates.len(), Bytes(scene.budget));
    let end = match (scene.requests(args.requests), args.time()) {
        (Some(requests), _) => format!("{} requests", HumanCount(requests)),
        (None, Some(time)) => format!("{} s", time.as_secs_f64()),
        (None, None) => "until the load ends".to_owned(),
    };
    let plural = if tenants == 1 { "" } else { "s" };
    format!("{tenants} tenant{plural} under {budget}: a warm-up, then {end}.")
}

/// Warms up and serves, while another thread looks at the limits and the statistics and moves the bar.
fn watched(
    args: &Args,
    scene: &Scene,
    setup: &Setup,
    work: &Work<'_>,
    history: &mut History,
) -> Result<(Done, Samples, Looks), Corrupt> {
    let groups: Vec<_> = setup.groups();
    let (end, progress) = (AtomicBool::new(false), Progress::new(args, scene.requests(args.requests)));
    let (mut live, mut drawn) = (Live::new(setup, args), InPlace::default());
    let mut tick = || {
        let elapsed = work.started.get().map(Instant::elapsed);
        history.take(&setup.service);
        if let Some(table) = live.look(elapsed) {
            // A program that cannot print it says so when it comes to the report.
            progress.bar.suspend(|| drop(drawn.draw(&table)));
        }
        progress.show(work);
    };
    let (done, samples) = thread::scope(|scope| {
        let sampler = scope.spawn(|| sampler::sample(&groups, &end, &mut tick));
        let running = End(&end);
        work.warm_up(&setup.largest_first());
        let done = work.serve();
        drop(running);
        let samples = sampler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        progress.bar.finish_and_clear();
        (done, samples)
    });
    let looks = live.into_looks();
    // The report takes the place of the last table.
    let _ = drawn.clear();
    Ok((done?, samples, looks))
}

/// The progress of the run.
struct Progress {
    bar: ProgressBar,
    /// Requests that there will be; `None`: the time tells.
    requests: Option<u64>,
}

impl Progress {
    /// A bar on the terminal; `indicatif` itself hides it where stderr is none.
    fn new(args: &Args, requests: Option<u64>) -> Self {
        let time = args.time().map_or(0, |time| time.as_millis() as u64);
        let template = match requests {
            Some(_) => "{bar:40} {human_pos} of {human_len} requests, {eta} left",
            None => "{bar:40} {msg} left",
        };
        let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new(requests.unwrap_or(time)) };
        let bar = match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        Self { bar, requests }
    }

    fn show(&self, work: &Work<'_>) {
        let at = match self.requests {
            Some(all) => work.taken.load(Ordering::Relaxed).min(all),
            None => work.started.get().map_or(0, |started| started.elapsed().as_millis() as u64),
        };
        self.bar.set_position(at);
        if self.requests.is_none() {
            let left = self.bar.length().unwrap_or(0).saturating_sub(at);
            self.bar.set_message(format!("{} s", left.div_ceil(1000)));
        }
    }
}
