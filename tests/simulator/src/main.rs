//! `memcg-simulator SEED` tells the story of a run; `--runs N --seconds S` runs many.

#[cfg(all(debug_assertions, not(loom)))]
fn main() -> std::process::ExitCode {
    program::main()
}

// Loom's models are its own. And the clock that a run moves by hand is there with debug assertions alone.
#[cfg(not(all(debug_assertions, not(loom))))]
fn main() {}

#[cfg(all(debug_assertions, not(loom)))]
mod program {
    use std::process::ExitCode;
    use std::time::{Duration, Instant};

    use clap::Parser;
    use memcg_simulator::script::{self, Op, Setup};
    #[cfg(not(shuttle))]
    use memcg_simulator::tell;
    use memcg_simulator::{as_test, run, run_at_once, shrink};

    /// Seeded lives beside a naive twin.
    #[derive(Parser)]
    struct Arguments {
        /// The seed of one run, whose story is told.
        seed: Option<u64>,
        /// So many runs, one seed after the other.
        #[arg(long, default_value_t = u64::MAX)]
        runs: u64,
        /// Runs for so long.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// The first seed of many.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Goes on after a run that fails, and counts them.
        #[arg(long)]
        all: bool,
        /// Ends with the first run that fails, and does not reduce it.
        #[arg(long)]
        first: bool,
        /// The threads run at once, and take no turns. Those of shuttle always do.
        #[arg(long)]
        at_once: bool,
        /// Adapters are in the script.
        #[cfg(feature = "adapters")]
        #[arg(long, conflicts_with = "at_once")]
        adapters: bool,
        /// Containers on nodes are in the script.
        #[cfg(feature = "kmem")]
        #[arg(long)]
        containers: bool,
    }

    impl Arguments {
        fn draw(&self, seed: u64) -> (Setup, Vec<Op>) {
            #[cfg(feature = "adapters")]
            if self.adapters {
                return script::draw_with_adapters(seed);
            }
            #[cfg(feature = "kmem")]
            if self.containers {
                return script::draw_with_containers(seed);
            }
            script::draw(seed)
        }
    }

    pub(crate) fn main() -> ExitCode {
        let arguments = Arguments::parse();
        match arguments.seed {
            Some(seed) => story(&arguments, seed),
            None => many(&arguments),
        }
    }

    fn story(arguments: &Arguments, seed: u64) -> ExitCode {
        let (setup, ops) = arguments.draw(seed);
        println!("{setup:?}");
        #[cfg(shuttle)]
        let result = {
            ops.iter().for_each(|op| println!("{op:?}"));
            run(&setup, &ops)
        };
        #[cfg(not(shuttle))]
        let result = tell(&setup, &ops, &mut |number, op, line| {
            println!("{number:4} {op:?}: {line}");
        });
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                println!("seed {seed} failed {failure}");
                let (setup, ops, failure) = shrink(&setup, &ops, failure, Duration::from_secs(60));
                println!("{}", as_test(&setup, &ops, &failure));
                ExitCode::FAILURE
            }
        }
    }

    fn many(arguments: &Arguments) -> ExitCode {
        let began = Instant::now();
        let mut failed = 0;
        let mut runs = 0;
        for seed in arguments.from.. {
            if runs >= arguments.runs || began.elapsed().as_secs() >= arguments.seconds {
                break;
            }
            runs += 1;
            let (setup, ops) = arguments.draw(seed);
            let result = if arguments.at_once {
                run_at_once(&setup, &ops)
            } else {
                run(&setup, &ops)
            };
            let Err(failure) = result else {
                continue;
            };
            failed += 1;
            println!("seed {seed} failed after {:.1?} {failure}", began.elapsed());
            if arguments.first {
                break;
            }
            if arguments.at_once {
                // Another schedule of the seed may hold, so there is no story to tell.
                continue;
            }
            if !arguments.all {
                return story(arguments, seed);
            }
        }
        println!("{runs} runs in {:.1?}, {failed} failed", began.elapsed());
        ExitCode::from(u8::from(failed > 0))
    }
}
