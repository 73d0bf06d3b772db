//! The arguments of a bench whose rows criterion runs.

use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, Parser};

use crate::choice::Choice;

/// Short, so that all rows take minutes; the medians of quiet machines are steady to a few per
/// cent.
const WARM_UP: Duration = Duration::from_millis(300);
const MEASUREMENT: Duration = Duration::from_secs(1);
const SAMPLES: usize = 24;

/// The time that `--quick` takes for a row as a rule: criterion goes on until two samples agree, a
/// tenth of a second at least.
const QUICK: Duration = Duration::from_millis(200);

/// Flags that criterion also understands, and few need: `cargo bench` and test runners pass some of
/// them.
const FLAGS: [&str; 6] = [
    "discard-baseline",
    "ignored",
    "include-ignored",
    "nocapture",
    "show-output",
    "quiet",
];
const VALUES: [&str; 10] = [
    "baseline-lenient",
    "color",
    "confidence-level",
    "load-baseline",
    "noise-threshold",
    "nresamples",
    "output-format",
    "plotting-backend",
    "profile-time",
    "significance-level",
];

/// A bench, for its help and its messages.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// As `cargo bench --bench` has it.
    pub name: &'static str,
    /// The subject that it measures.
    pub about: &'static str,
}

/// The arguments of a bench whose rows criterion runs.
#[derive(Args, Clone, Debug)]
pub struct RowOptions {
    /// The rows.
    #[command(flatten)]
    pub choice: Choice,
    /// Samples of each row, 10 at least [default: 24]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(10..))]
    sample_size: Option<usize>,
    /// Warm-up of each row, in seconds [default: 0.3]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    warm_up_time: Option<Duration>,
    /// Samples of each row together, in seconds [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    measurement_time: Option<Duration>,
    /// Save what is measured under this name [default: base]
    #[arg(long, short = 's', value_name = "NAME")]
    save_baseline: Option<String>,
    /// Compare with what was saved under this name
    #[arg(long, short = 'b', value_name = "NAME")]
    baseline: Option<String>,
    /// Draw no plots, with feature `plots`
    #[arg(long, short = 'n')]
    noplot: bool,
    /// Print more of the statistics of each row
    #[arg(long, short = 'v')]
    verbose: bool,
}

/// The same as a program.
#[derive(Parser)]
pub struct RowProgram {
    /// All that it has.
    #[command(flatten)]
    pub rows: RowOptions,
}

/// Reads the command line of a bench that prints tables. Ends the program after `--help` and where
/// the command line is wrong.
#[must_use]
pub fn parse<P: Parser>(bench: &Bench) -> P {
    from_matches(&command::<P>(bench).get_matches())
}

/// The same for a bench with rows that criterion runs: what criterion understands besides is passed
/// over, for criterion reads the command line, too.
#[must_use]
pub fn parse_rows<P: Parser>(bench: &Bench) -> P {
    from_matches(&with_criterion(command::<P>(bench)).get_matches())
}

fn from_matches<P: Parser>(matches: &ArgMatches) -> P {
    P::from_arg_matches(matches).unwrap_or_else(|error| error.exit())
}

impl RowOptions {
    /// Warm-up of each row.
    #[must_use]
    pub fn warm_up(&self) -> Duration {
        self.warm_up_time.unwrap_or(WARM_UP)
    }

    /// Samples of each row, all together.
    #[must_use]
    pub fn measurement(&self) -> Duration {
        self.measurement_time.unwrap_or(MEASUREMENT)
    }

    /// Samples of each row.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.sample_size.unwrap_or(SAMPLES)
    }

    /// The time of one row, its set-up and the statistics of its samples aside.
    #[must_use]
    pub fn row_takes(&self) -> Duration {
        match () {
            () if self.choice.is_trial() => Duration::ZERO,
            () if self.choice.is_small() => QUICK.min(self.measurement()),
            () => self.warm_up() + self.measurement(),
        }
    }
}

/// A command with the bench's name and description.
fn command<P: CommandFactory>(bench: &Bench) -> Command {
    let usage = format!("cargo bench --bench {} -- [OPTIONS] [FILTER]", bench.name);
    P::command()
        .name(bench.name)
        .about(bench.about)
        .override_usage(usage)
}

fn with_criterion(command: Command) -> Command {
    let flags = FLAGS.map(|name| {
        Arg::new(name)
            .long(name)
            .hide(true)
            .action(ArgAction::SetTrue)
    });
    let values = VALUES.map(|name| Arg::new(name).long(name).hide(true).action(ArgAction::Set));
    command.args(flags).args(values)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0);
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "seconds are a number above 0, such as 0.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCH: Bench = Bench {
        name: "charge",
        about: "Charges, timed.",
    };

    fn parse(line: &str) -> Result<RowOptions, clap::Error> {
        let command = with_criterion(command::<RowProgram>(&BENCH));
        Ok(from_matches::<RowProgram>(&command.try_get_matches_from(line.split(' '))?).rows)
    }

    #[test]
    fn rows_take_what_was_asked_for() {
        let of = |line| parse(line).expect("good arguments").row_takes();
        assert_eq!(of("charge --bench"), Duration::from_millis(1_300));
        assert_eq!(
            of("charge --bench --warm-up-time 0.5 --measurement-time 2"),
            Duration::from_millis(2_500)
        );
        assert_eq!(of("charge --bench --quick"), Duration::from_millis(200));
        assert_eq!(of("charge"), Duration::ZERO);
    }

    #[test]
    fn what_criterion_understands_is_accepted() {
        for line in [
            "charge x --bench --sample-size 10",
            "charge --noise-threshold 0.1 --color never --nocapture -v",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for (line, word) in [
            ("charge --sample-size 9", "10"),
            ("charge --warm-up-time 0", "above 0"),
            ("charge --measurement-time=-1", "above 0"),
            ("charge --measurement-time nan", "above 0"),
            ("charge --filter x", "--filter"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn the_help_fits_a_terminal() {
        let help = with_criterion(command::<RowProgram>(&BENCH))
            .render_help()
            .to_string();
        assert!(
            help.contains("Charges, timed.") && help.contains("--list"),
            "{help}"
        );
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
