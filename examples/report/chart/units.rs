//! The text of a figure on an axis.

/// The unit of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// A number: `1,500`, `20k`, `3M`.
    #[default]
    Count,
    /// Bytes in binary units: `64 KiB`.
    Bytes,
    /// Of a hundred: `12.5 %`.
    Percent,
    /// Nanoseconds, or what is larger: `1.2 ms`.
    Nanos,
    /// Seconds: `3 s`.
    Seconds,
}

impl Unit {
    /// A figure in this unit, in three digits where that tells it.
    pub fn format(self, value: f64) -> String {
        match self {
            Self::Count => count(value),
            Self::Bytes => scaled(value, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"]),
            Self::Percent => format!("{} %", digits(value)),
            Self::Nanos => scaled(value, 1000.0, &[" ns", " µs", " ms", " s"]),
            Self::Seconds => format!("{} s", digits(value)),
        }
    }

    /// Steps between ticks are round in this base.
    pub(super) fn is_binary(self) -> bool {
        self == Self::Bytes
    }
}

fn count(value: f64) -> String {
    if value.abs() >= 10_000.0 {
        return scaled(value, 1000.0, &["", "k", "M", "G", "T"]);
    }
    let text = digits(value);
    match text.len() {
        4 if value >= 1000.0 && !text.contains('.') => format!("{},{}", &text[..1], &text[1..]),
        _ => text,
    }
}

fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut at = 0;
    while value.abs() >= base && at + 1 < units.len() {
        value /= base;
        at += 1;
    }
    format!("{}{}", digits(value), units[at])
}

/// Three digits, more before the point; no zeros at the end of a fraction.
fn digits(value: f64) -> String {
    let fraction = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        _ => 4,
    };
    let text = format!("{value:.fraction$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}
