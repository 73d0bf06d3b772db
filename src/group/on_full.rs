//! `OnFull`: what a charge does that does not fit, as it stands in a configuration file.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Units by falling length, as nanoseconds.
const UNITS: [(&str, u128); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Says what a charge does that does not fit at once: the argument of
/// [`Group::try_charge_with`](crate::Group::try_charge_with). It is text in a configuration file.
///
/// ```
/// use memcg::OnFull;
/// use std::time::Duration;
///
/// assert_eq!("wait(10s)".parse(), Ok(OnFull::Wait(Duration::from_secs(10))));
/// assert_eq!("refuse".parse(), Ok(OnFull::Refuse));
/// assert_eq!(OnFull::Wait(Duration::from_millis(1_500)).to_string(), "wait(1500ms)");
/// assert!("wait".parse::<OnFull>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFull {
    /// `refuse`: it drains, reclaims and has victims cancelled, then is refused. It may sleep and wait for others.
    #[default]
    Refuse,
    /// `wait(10s)`: as `Refuse`, and then it waits in line, for so long at most.
    Wait(Duration),
    /// `force`: as `Refuse` without victims, and then it is made above the limit.
    Force,
    /// `reclaim`: as `Refuse`, but it neither sleeps nor waits for others, and cancels one victim at most.
    Reclaim,
    /// `start`: it never blocks. Other threads begin to drain, reclaim and cancel for it.
    Start,
    /// `now`: it never blocks and starts nothing.
    Now,
    /// `if_room`: as `Now`, also below each high; a refusal counts nothing and has no figures.
    IfRoom,
}

/// Why a text is no [`OnFull`].
///
/// ```
/// use memcg::OnFull;
///
/// let fault = "wait(10)".parse::<OnFull>().unwrap_err();
/// assert_eq!(fault.to_string(), "\"10\" is no time: a whole number with a unit (ns, us, ms, s, m, h), such as 10s");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseOnFullError {
    /// None of the forms.
    Unknown(String),
    /// The text in its brackets is no time.
    Time(String),
}

impl fmt::Display for ParseOnFullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(inner) => write!(
                f,
                "{inner:?} is none of \"refuse\", \"wait(10s)\", \"force\", \"reclaim\", \"start\", \"now\", \"if_room\""
            ),
            Self::Time(inner) => {
                write!(f, "{inner:?} is no time: a whole number with a unit (ns, us, ms, s, m, h), such as 10s")
            }
        }
    }
}

impl std::error::Error for ParseOnFullError {}

/// The forms without an argument.
const WORDS: [(&str, OnFull); 6] = [
    ("refuse", OnFull::Refuse),
    ("force", OnFull::Force),
    ("reclaim", OnFull::Reclaim),
    ("start", OnFull::Start),
    ("now", OnFull::Now),
    ("if_room", OnFull::IfRoom),
];

impl FromStr for OnFull {
    type Err = ParseOnFullError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some((_, full)) = WORDS.iter().find(|(word, _)| *word == text) {
            return Ok(*full);
        }
        let time = text.strip_prefix("wait(").and_then(|rest| rest.strip_suffix(')'));
        let time = time.ok_or_else(|| ParseOnFullError::Unknown(text.to_string()))?;
        parse_time(time).map(OnFull::Wait).ok_or_else(|| ParseOnFullError::Time(time.to_string()))
    }
}

fn parse_time(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    let (_, nanoseconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let all = number.parse::<u128>().ok()?.checked_mul(*nanoseconds)?;
    let seconds = u64::try_from(all / 1_000_000_000).ok()?;
    Some(Duration::new(seconds, (all % 1_000_000_000) as u32))
}

/// In the largest unit that gives a whole number, so that it parses back to the same.
impl fmt::Display for OnFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OnFull::Wait(time) = self else {
            return WORDS.iter().filter(|(_, full)| full == self).try_for_each(|(word, _)| f.write_str(word));
        };
        if time.is_zero() {
            return f.write_str("wait(0s)");
        }
        let all = time.as_nanos();
        // Nanoseconds always divide.
        let unit = UNITS.iter().find(|(_, nanoseconds)| all % nanoseconds == 0);
        let (name, nanoseconds) = unit.unwrap_or(&("ns", 1));
        write!(f, "wait({}{name})", all / nanoseconds)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for OnFull {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for OnFull {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
