//! The costs of the limiter: a `memory.grow` of one page, and the life of an instance, each without
//! a limiter, with `StoreLimits` and with a group, in turns of one run. `--rounds N` sets the
//! rounds; the table has medians.

use std::error::Error;
use std::time::Instant;

use memcg::{Group, Limits, Runtime};
use memcg_wasmtime::{GroupLimiter, limit};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, InstancePre, Linker, Module,
    PoolingAllocationConfig, Store, StoreLimits, StoreLimitsBuilder,
};

const GUEST: &str = r#"(module
    (memory 1)
    (func (export "grow") (param $times i32)
        (loop
            (drop (memory.grow (i32.const 1)))
            (local.set $times (i32.sub (local.get $times) (i32.const 1)))
            (br_if 0 (local.get $times)))))"#;

/// Growths of a guest in a turn.
const GROWTHS: i32 = 200;
/// Instances that come and go in a turn.
const LIVES: u32 = 200;

#[derive(Clone, Copy, PartialEq)]
enum With {
    Nothing,
    StoreLimits,
    Group,
    GroupWithoutCredit,
}

const ALL: [(With, &str); 4] = [
    (With::Nothing, "no limiter"),
    (With::StoreLimits, "StoreLimits"),
    (With::Group, "a group"),
    (With::GroupWithoutCredit, "a group near its max"),
];

struct State {
    group: Option<GroupLimiter>,
    limits: StoreLimits,
}

struct Host {
    engine: Engine,
    guest: InstancePre<State>,
    group: Group,
    near: Group,
}

impl Host {
    fn new(engine: Engine, runtime: &Runtime) -> Result<Host, Box<dyn Error>> {
        let guest = Linker::new(&engine).instantiate_pre(&Module::new(&engine, GUEST)?)?;
        let group = runtime
            .root()
            .get_or_create("acme", Limits::new().max(1 << 30))?;
        let near = runtime
            .root()
            .get_or_create("near", Limits::new().max((GROWTHS as usize + 2) << 16))?;
        Ok(Host {
            engine,
            guest,
            group,
            near,
        })
    }

    fn start(&self, with: With) -> wasmtime::Result<(Store<State>, wasmtime::Instance)> {
        let group = match with {
            With::Group => Some(GroupLimiter::new(&self.group)),
            With::GroupWithoutCredit => Some(GroupLimiter::new(&self.near)),
            With::Nothing | With::StoreLimits => None,
        };
        let limits = StoreLimitsBuilder::new().memory_size(1 << 30).build();
        let has_group = group.is_some();
        let mut store = Store::new(&self.engine, State { group, limits });
        if has_group {
            limit(&mut store, |state| {
                state.group.as_mut().expect("it has one")
            });
        } else if with == With::StoreLimits {
            store.limiter(|state| &mut state.limits);
        }
        let instance = self.guest.instantiate(&mut store)?;
        Ok((store, instance))
    }

    /// Nanoseconds of one growth.
    fn growth(&self, with: With) -> wasmtime::Result<f64> {
        let (mut store, instance) = self.start(with)?;
        let grow = instance.get_typed_func::<i32, ()>(&mut store, "grow")?;
        let start = Instant::now();
        grow.call(&mut store, GROWTHS)?;
        Ok(start.elapsed().as_nanos() as f64 / f64::from(GROWTHS))
    }

    /// Nanoseconds of a store with one instance.
    fn life(&self, with: With) -> wasmtime::Result<f64> {
        let start = Instant::now();
        for _ in 0..LIVES {
            drop(self.start(with)?);
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(LIVES))
    }
}

fn pooled() -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_memories(4)
        .total_core_instances(4)
        .max_memory_size(64 << 20);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .memory_reservation(64 << 20);
    Engine::new(&config)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args()
        .skip_while(|argument| argument != "--rounds")
        .skip(1);
    let rounds: usize = arguments.next().map_or(Ok(101), |rounds| rounds.parse())?;
    let runtime = Runtime::builder().build()?;
    let hosts = [("on demand", Engine::default()), ("pooled", pooled()?)];
    println!(
        "{:<12} {:<22} {:>14} {:>16}",
        "allocator", "limiter", "ns a growth", "us an instance"
    );
    for (allocator, engine) in hosts {
        let host = Host::new(engine, &runtime)?;
        let mut times = ALL.map(|_| (Vec::new(), Vec::new()));
        for _ in 0..rounds {
            for ((with, _), (growths, lives)) in ALL.iter().zip(&mut times) {
                growths.push(host.growth(*with)?);
                lives.push(host.life(*with)? / 1e3);
            }
        }
        for ((_, name), (growths, lives)) in ALL.iter().zip(times) {
            println!(
                "{allocator:<12} {name:<22} {:>14.0} {:>16.2}",
                median(growths),
                median(lives)
            );
        }
    }
    assert_eq!(runtime.root().live(), 0);
    println!("{}", runtime.verify());
    Ok(())
}
