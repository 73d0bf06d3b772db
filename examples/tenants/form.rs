//! One of the two forms of the service that `--kill` starts: a process of its own, in a control group.
//!
//! It waits to be told that it is in there, serves, and reports now and then how far it is: a process that is killed
//! has no time for a report.

use std::io::{self, BufRead};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;

use crate::args::Args;
use crate::kill::{KillError, requests};
use crate::policy::Policy;
use crate::sampler::End;
use crate::scene::Scene;
use crate::setup::Setup;
use crate::work::{Extent, SLICE, Work};
use crate::{Failure, print, report};

/// The word that lets the form go on.
pub(crate) const GO: &str = "go";

/// Between two lines of [`Progress`].
const PAUSE: Duration = Duration::from_millis(5);

/// With a limit of ours, or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Unlimited,
    Memcg,
}

/// The progress of a form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Requests that have been served, at least.
    pub(crate) requests: u64,
    /// The bytes that the entries are charged.
    pub(crate) live: u64,
}

impl Form {
    pub(crate) const ALL: [Self; 2] = [Self::Unlimited, Self::Memcg];

    pub(crate) fn policy(self) -> Policy {
        match self {
            Self::Unlimited => Policy::Unlimited,
            Self::Memcg => Policy::Memcg,
        }
    }
}

impl Progress {
    fn line(self) -> String {
        format!("{} {}", self.requests, self.live)
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (requests, live) = line.split_once(' ')?;
        Some(Self { requests: requests.parse().ok()?, live: live.parse().ok()? })
    }
}

/// Serves when told to; returns what does not add up.
pub(crate) fn run(args: &Args, form: Form) -> Result<Vec<String>, Failure> {
    let mut told = String::new();
    io::stdin().lock().read_line(&mut told).map_err(KillError::Told)?;
    if told.trim_end() != GO {
        return Err(KillError::NotTold.into());
    }
    let scene = Scene::new(args)?;
    let setup = Setup::new(args, &scene, args.rule(form.policy(), args.seed))?;
    let threads = args.threads().min(setup.service.tenants.len());
    let requests = Some(requests(args));
    let extent = Extent { threads, time: args.time(), requests, seed: args.seed, only: None };
    let work = Work::new(&setup.service, &scene.arrivals, None, extent, 0);
    let root = setup.runtime.root();
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let running = End(&end);
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                // Requests that have been taken on are served, but for a slice of each worker's.
                let requests = work.taken.load(Ordering::Relaxed).saturating_sub(threads as u64 * SLICE);
                // No thread listens any more: no tenant has to be told.
                let _ = print(&Progress { requests, live: root.live() }.line());
                thread::sleep(PAUSE);
            }
        });
        work.warm_up(&setup.largest_first());
        let done = work.serve();
        drop(running);
        done
    })?;
    let requests = setup.service.tenants.iter().map(|tenant| tenant.turn.lock().cache.figures.requests).sum();
    let last = Progress { requests, live: root.live() };
    let faults = report::close(setup);
    print(&last.line())?;
    Ok(faults)
}
