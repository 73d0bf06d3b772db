//! The ends of attempts, and the waits of the admitted charges.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use memcg::figures::Events;

/// The forms of a charge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    Charge,
    Try,
    Undelayed,
    Timeout,
    Async,
    Overcharge,
}

pub(crate) const FORMS: [Form; 6] = [
    Form::Charge,
    Form::Try,
    Form::Undelayed,
    Form::Timeout,
    Form::Async,
    Form::Overcharge,
];

/// The ends of an attempt: each has exactly one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Admitted,
    Refused,
    TimedOut,
    /// The future was dropped while it waited.
    Dropped,
    /// The group that was to be charged has been chosen.
    Cancelled,
    Offline,
}

pub(crate) const ENDS: [End; 6] = [
    End::Admitted,
    End::Refused,
    End::TimedOut,
    End::Dropped,
    End::Cancelled,
    End::Offline,
];

/// Of one thread, or of all.
#[derive(Default)]
pub(crate) struct Tally {
    forms: [OfForm; FORMS.len()],
    events: BTreeMap<&'static str, u64>,
}

struct OfForm {
    begun: u64,
    ended: [u64; ENDS.len()],
    /// Microseconds from the call to the admission.
    latency: Histogram<u64>,
}

impl Default for OfForm {
    fn default() -> Self {
        Self {
            begun: 0,
            ended: [0; ENDS.len()],
            latency: Histogram::new(3).expect("three digits"),
        }
    }
}

impl OfForm {
    fn add(&mut self, other: &Self) {
        self.begun += other.begun;
        self.ended
            .iter_mut()
            .zip(other.ended)
            .for_each(|(sum, more)| *sum += more);
        self.latency.add(&other.latency).expect("it grows");
    }

    fn row(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{name:>12}")?;
        self.ended
            .iter()
            .try_for_each(|count| write!(f, "{count:>10}"))?;
        let latency = &self.latency;
        let quantiles = [
            latency.value_at_quantile(0.5),
            latency.value_at_quantile(0.99),
            latency.max(),
        ];
        quantiles
            .iter()
            .try_for_each(|&micros| write!(f, "{:>9.3} ms", micros as f64 / 1e3))?;
        writeln!(f)
    }
}

impl Tally {
    pub(crate) fn begin(&mut self, form: Form) {
        self.forms[form as usize].begun += 1;
    }

    pub(crate) fn end(&mut self, form: Form, end: End, after: Duration) {
        let of = &mut self.forms[form as usize];
        of.ended[end as usize] += 1;
        if end == End::Admitted {
            let micros = u64::try_from(after.as_micros()).expect("not so long");
            of.latency.record(micros).expect("it grows");
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.forms
            .iter_mut()
            .zip(&other.forms)
            .for_each(|(of, other)| of.add(other));
        other
            .events
            .iter()
            .for_each(|(event, count)| *self.events.entry(event).or_default() += count);
    }

    pub(crate) fn of(&self, form: Form, end: End) -> u64 {
        self.forms[form as usize].ended[end as usize]
    }

    pub(crate) fn sum(&self, end: End) -> u64 {
        FORMS.iter().map(|&form| self.of(form, end)).sum()
    }

    /// Every attempt has ended, in one way, and in one that its form has.
    pub(crate) fn check(&self) {
        for (form, of) in FORMS.iter().zip(&self.forms) {
            assert_eq!(
                of.begun,
                of.ended.iter().sum::<u64>(),
                "{form:?}: attempts begun, and ended"
            );
        }
        for form in [Form::Charge, Form::Try, Form::Undelayed, Form::Overcharge] {
            assert_eq!(
                (self.of(form, End::TimedOut), self.of(form, End::Dropped)),
                (0, 0),
                "{form:?} does not wait"
            );
        }
        assert_eq!(self.of(Form::Overcharge, End::Refused), 0);
    }

    /// Adds the events of one tree.
    pub(crate) fn add_events(&mut self, events: &Events) {
        for (event, count) in events.iter() {
            *self.events.entry(event.name()).or_default() += count;
        }
    }

    /// It was a storm: nothing that it is made of is missing.
    pub(crate) fn is_storm(&self) -> bool {
        FORMS.iter().all(|&form| self.of(form, End::Admitted) > 0)
            && ENDS.iter().all(|&end| self.sum(end) > 0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12}", "")?;
        ENDS.iter()
            .try_for_each(|end| write!(f, "{:>10}", format!("{end:?}")))?;
        writeln!(f, "{:>12}{:>12}{:>12}", "p50", "p99", "most")?;
        let mut all = OfForm::default();
        for (form, of) in FORMS.iter().zip(&self.forms) {
            of.row(&format!("{form:?}"), f)?;
            all.add(of);
        }
        all.row("all", f)?;
        let events: Vec<String> = self
            .events
            .iter()
            .map(|(event, count)| format!("{event} {count}"))
            .collect();
        write!(f, "events: {}", events.join(", "))
    }
}
