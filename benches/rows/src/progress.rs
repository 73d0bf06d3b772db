//! The time that a program takes, and its progress.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A time as a person would say it: `less than a second`, `45 s`, `2 min 5 s`, `1 h 20 min`.
#[must_use]
pub fn words(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0) => "less than a second".to_owned(),
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, 0) => format!("{minutes} min"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, 0, _) => format!("{hours} h"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// The time left for so many steps if the others take as long as those that are done; `None` before
/// the first is.
#[must_use]
pub fn left(done: usize, steps: usize, elapsed: Duration) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(steps.saturating_sub(done) as f64 / done as f64))
}

/// Steps of a program, of about equal length. What it says goes to the standard error output,
/// beside the tables.
#[derive(Debug)]
pub struct Progress {
    bench: &'static str,
    steps: usize,
    done: usize,
    began: Instant,
    takes: Duration,
    bar: ProgressBar,
}

impl Progress {
    /// Says what there is to do and how long it takes. `what` names the steps, such as `84 rows`.
    #[must_use]
    pub fn start(bench: &'static str, what: &str, steps: usize, takes: Duration) -> Progress {
        eprintln!("{bench}: {what}, about {}", words(takes));
        Progress {
            bench,
            steps,
            done: 0,
            began: Instant::now(),
            takes,
            bar: ProgressBar::hidden(),
        }
    }

    /// The same with a bar, for a program that prints nothing between two steps but by
    /// [`say`](Self::say).
    #[must_use]
    pub fn bar(bench: &'static str, what: &str, steps: usize, takes: Duration) -> Progress {
        let mut progress = Progress::start(bench, what, steps, takes);
        let style = ProgressStyle::with_template("{prefix}: [{wide_bar}] {pos}/{len}{msg}");
        let style = style
            .expect("the words name what indicatif knows")
            .progress_chars("#> ");
        progress.bar = ProgressBar::new(steps as u64)
            .with_style(style)
            .with_prefix(bench);
        progress.bar.set_message(progress.rest());
        progress.bar.tick();
        progress
    }

    /// A line before the next step, on a terminal: for steps that print by themselves.
    pub fn next(&self) {
        if self.steps > 1 && stderr().is_terminal() {
            eprintln!(
                "{}: {}/{}{}",
                self.bench,
                self.done + 1,
                self.steps,
                self.rest()
            );
        }
    }

    /// One step more is done. After the last the bar goes.
    pub fn step(&mut self) {
        self.done += 1;
        self.bar.inc(1);
        self.bar.set_message(self.rest());
        if self.done >= self.steps {
            self.bar.finish_and_clear();
        }
    }

    /// Print to the standard output, above the bar.
    pub fn say(&self, text: impl std::fmt::Display) {
        self.bar.suspend(|| println!("{text}"));
    }

    /// The time left: from the steps that are done, or as it was said at the start.
    fn rest(&self) -> String {
        let elapsed = self.began.elapsed();
        let rest = left(self.done, self.steps, elapsed)
            .unwrap_or_else(|| self.takes.saturating_sub(elapsed));
        if self.done >= self.steps {
            String::new()
        } else {
            format!(", about {} left", words(rest))
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_in_words() {
        for (seconds, text) in [
            (0.4, "less than a second"),
            (0.6, "1 s"),
            (45.0, "45 s"),
            (60.0, "1 min"),
            (125.0, "2 min 5 s"),
            (3_600.0, "1 h"),
            (4_800.4, "1 h 20 min"),
        ] {
            assert_eq!(words(Duration::from_secs_f64(seconds)), text);
        }
    }

    #[test]
    fn what_is_left_comes_from_what_is_done() {
        assert_eq!(left(0, 10, Duration::from_secs(3)), None);
        assert_eq!(
            left(3, 10, Duration::from_secs(3)),
            Some(Duration::from_secs(7))
        );
        assert_eq!(left(10, 10, Duration::from_secs(3)), Some(Duration::ZERO));
    }

    #[test]
    fn the_rest_is_estimated_before_the_first_step() {
        let mut progress = Progress::start("bench", "2 rows", 2, Duration::from_secs(3_000));
        assert_eq!(progress.rest(), ", about 50 min left");
        progress.step();
        assert_eq!(progress.rest(), ", about less than a second left");
        progress.step();
        assert_eq!(progress.rest(), "");
    }
}
