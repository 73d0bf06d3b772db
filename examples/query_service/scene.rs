//! The five phases under one policy.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use tokio::runtime::{Builder, Runtime};

use crate::Args;
use crate::data::{Tables, batch};
use crate::heap::hold_little;
use crate::load::{Load, Tenant};
use crate::outcome::Outcome;
use crate::policy::{Policy, Service};
use crate::sampler::Sampler;

/// The tenants of each phase.
pub(crate) const PHASES: [(&str, &[Tenant]); 5] = [
    ("gold", &[Tenant::Gold]),
    ("+ silver", &[Tenant::Gold, Tenant::Silver]),
    ("+ heavy", &Tenant::ALL),
    ("heavy alone", &[Tenant::Heavy]),
    ("less memory", &Tenant::ALL),
];

/// Of them: gold alone, all three, heavy alone, and the one that begins with less memory.
pub(crate) const ALONE: usize = 0;
pub(crate) const TOGETHER: usize = 2;
pub(crate) const HEAVY_ALONE: usize = 3;
pub(crate) const LOWERED: usize = 4;

/// Gold sends four queries a second, and silver two.
const GOLD_BEAT: Duration = Duration::from_millis(250);
const SILVER_BEAT: Duration = Duration::from_millis(500);

/// Clients of heavy, and queries of each in the phase that has a fixed number of them.
const CLIENTS: usize = 2;
const FIXED: usize = 2;

/// The runtimes of gold and of the others: one, or two on a core each.
struct Workers {
    first: Runtime,
    second: Option<Runtime>,
}

impl Workers {
    fn new(pinned: bool) -> std::io::Result<Workers> {
        if !pinned {
            return Ok(Workers {
                first: Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()?,
                second: None,
            });
        }
        let on = |core| {
            let pin = move || _ = core_affinity::set_for_current(CoreId { id: core });
            Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .on_thread_start(pin)
                .build()
        };
        Ok(Workers {
            first: on(0)?,
            second: Some(on(1)?),
        })
    }

    fn of(&self, tenant: Tenant) -> &Runtime {
        if tenant == Tenant::Gold {
            &self.first
        } else {
            self.second.as_ref().unwrap_or(&self.first)
        }
    }
}

/// Runs all phases.
pub(crate) fn run(policy: Policy, args: &Args) -> Result<Outcome, Box<dyn Error>> {
    let memory = args.memory << 20;
    let say = |line: &str| {
        if !args.quiet {
            eprintln!("{:<10} {line}", policy.name());
        }
    };
    hold_little();
    say("tables");
    let tables = Tables::generate(args.scale, batch(memory))?;
    let mut outcome = Outcome::new(policy, args, tables.bytes());
    let service = Arc::new(Service::new(policy, tables, memory)?);
    #[cfg(feature = "serve")]
    let shown = match (&args.serve, service.runtime()) {
        (Some(path), Some(runtime)) => Some(memcg_observe::serve(runtime, path)?),
        _ => None,
    };
    let workers = Workers::new(args.pinned)?;
    let load = Load::new(Arc::clone(&service));
    let sampler = Sampler::start(Arc::clone(&service));
    let time = Duration::from_secs_f64(args.seconds);
    for (phase, (name, tenants)) in PHASES.iter().enumerate() {
        say(name);
        sampler.enter(phase);
        if phase == LOWERED {
            outcome.is_lowered = service.lower(memory / 4 * 3);
        }
        let begun = Instant::now();
        let before = service.stood_still();
        let mut running = Vec::new();
        for &tenant in *tenants {
            let runtime = workers.of(tenant);
            match tenant {
                Tenant::Gold => running
                    .push(runtime.spawn(Arc::clone(&load).at_rate(phase, tenant, GOLD_BEAT, time))),
                Tenant::Silver => running.push(runtime.spawn(Arc::clone(&load).at_rate(
                    phase,
                    tenant,
                    SILVER_BEAT,
                    time,
                ))),
                Tenant::Heavy => {
                    let (time, most) = if phase == HEAVY_ALONE {
                        (None, FIXED)
                    } else {
                        (Some(time), usize::MAX)
                    };
                    let client = |client| {
                        runtime.spawn(Arc::clone(&load).one_by_one(phase, client, time, most))
                    };
                    running.extend((0..CLIENTS).map(client));
                }
            }
        }
        for tenant in running {
            workers.first.block_on(tenant)?;
        }
        outcome.phases[phase].seconds = begun.elapsed().as_secs_f64();
        let stood = Tenant::ALL
            .map(|tenant| service.stood_still()[tenant as usize] - before[tenant as usize]);
        outcome.phases[phase].stood_still_ms = stood.map(|time| time.as_secs_f64() * 1e3);
    }
    outcome.add_samples(&sampler.end());
    load.with_records(|records| outcome.add_records(records));
    #[cfg(feature = "serve")]
    drop(shown);
    // Blocks and tasks that were aborted end with the runtimes.
    drop((workers, load));
    let service = Arc::into_inner(service).ok_or("the service is still in use")?;
    outcome.ends(service.end());
    Ok(outcome)
}
