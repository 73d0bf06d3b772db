//! Processes that measure one thing and nothing else: this program, started again with a word of
//! its own.
//!
//! One line in is an order, one line out its answer, both numbers with blanks between. A process
//! gets its orders one by one and ends with its input.

#![cfg(not(loom))]

use std::env;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The first argument of such a process.
const WORD: &str = "--alone";

/// A process, from the other side.
pub(crate) struct Alone {
    child: Child,
    /// Taken to end it.
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    what: String,
}

impl Alone {
    /// `what` and its arguments are what [`asked`] has over there.
    pub(crate) fn start(what: &str, args: &[String]) -> Alone {
        let program = env::current_exe().expect("a program has a path");
        let mut child = Command::new(program)
            .args([WORD, what])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Alone {
            child,
            orders,
            answers,
            what: format!("{what} {}", args.join(" ")),
        }
    }

    /// Tell it, and wait for what it says.
    pub(crate) fn ask(&mut self, order: &[u64]) -> Vec<f64> {
        let orders = self.orders.as_mut().expect("it has not been ended");
        let told = writeln!(orders, "{}", line(order));
        told.unwrap_or_else(|error| panic!("{} is gone: {error}", self.what));
        self.answer()
    }

    /// Wait for something that it says by itself.
    pub(crate) fn answer(&mut self) -> Vec<f64> {
        let answer = self.answers.next().and_then(Result::ok);
        let answer = answer.unwrap_or_else(|| panic!("{} has ended without an answer", self.what));
        numbers(&answer).unwrap_or_else(|| panic!("{} says {answer:?}", self.what))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        drop(self.orders.take());
        // It has said what it had to say. Waited for, its time counts as ours.
        let _ = self.child.wait();
    }
}

/// The purpose and the numbers that this process was started with, if it is such a one.
pub(crate) fn asked() -> Option<(String, Vec<String>)> {
    let mut args = env::args().skip(1);
    (args.next()? == WORD)
        .then(|| args.next())
        .flatten()
        .map(|what| (what, args.collect()))
}

/// Over there: answer every order until there are no more.
pub(crate) fn serve(mut answer: impl FnMut(&[u64]) -> Vec<f64>) {
    for order in std::io::stdin().lines() {
        let order = order.expect("a pipe");
        let order: Option<Vec<u64>> = order.split(' ').map(|number| number.parse().ok()).collect();
        say(&answer(&order.expect("orders are numbers")));
    }
}

/// Over there: answer.
pub(crate) fn say(numbers: &[f64]) {
    println!("{}", line(numbers));
}

fn line(numbers: &[impl Display]) -> String {
    numbers
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

fn numbers(line: &str) -> Option<Vec<f64>> {
    line.split(' ').map(|number| number.parse().ok()).collect()
}
