//! What a caller wants when there is no room, as it stands in a configuration file.

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

/// What becomes of a charge that does not fit, after reclaim.
///
/// ```
/// use memcg::OnExhausted;
/// use std::time::Duration;
///
/// assert_eq!("wait(10s)".parse(), Ok(OnExhausted::Wait(Duration::from_secs(10))));
/// assert_eq!("fail".parse(), Ok(OnExhausted::Fail));
/// assert_eq!(OnExhausted::Wait(Duration::from_millis(1_500)).to_string(), "wait(1500ms)");
/// assert!("wait".parse::<OnExhausted>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnExhausted {
    /// It is refused.
    #[default]
    Fail,
    /// It waits in line, for so long at most.
    Wait(Duration),
    /// It is made all the same, above the limit.
    Overcharge,
}

/// Why a text is no [`OnExhausted`].
///
/// ```
/// use memcg::OnExhausted;
///
/// let fault = "wait(10)".parse::<OnExhausted>().unwrap_err();
/// assert_eq!(fault.to_string(), "\"10\" is no time: a whole number with a unit (ns, us, ms, s, m, h), such as 10s");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseOnExhaustedError {
    /// None of the three.
    Unknown(String),
    /// What it should wait for is no time.
    Time(String),
}

impl fmt::Display for ParseOnExhaustedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(inner) => write!(f, "{inner:?} is none of \"fail\", \"wait(10s)\", \"overcharge\""),
            Self::Time(inner) => {
                write!(f, "{inner:?} is no time: a whole number with a unit (ns, us, ms, s, m, h), such as 10s")
            }
        }
    }
}

impl std::error::Error for ParseOnExhaustedError {}

impl FromStr for OnExhausted {
    type Err = ParseOnExhaustedError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "fail" => Ok(OnExhausted::Fail),
            "overcharge" => Ok(OnExhausted::Overcharge),
            _ => {
                let time = text.strip_prefix("wait(").and_then(|rest| rest.strip_suffix(')'));
                let time = time.ok_or_else(|| ParseOnExhaustedError::Unknown(text.to_string()))?;
                let waits = parse_time(time).ok_or_else(|| ParseOnExhaustedError::Time(time.to_string()))?;
                Ok(OnExhausted::Wait(waits))
            }
        }
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
impl fmt::Display for OnExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnExhausted::Fail => f.write_str("fail"),
            OnExhausted::Overcharge => f.write_str("overcharge"),
            OnExhausted::Wait(time) if time.is_zero() => f.write_str("wait(0s)"),
            OnExhausted::Wait(time) => {
                let all = time.as_nanos();
                // Nanoseconds always divide.
                let unit = UNITS.iter().find(|(_, nanoseconds)| all % nanoseconds == 0);
                let (name, nanoseconds) = unit.unwrap_or(&("ns", 1));
                write!(f, "wait({}{name})", all / nanoseconds)
            }
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for OnExhausted {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for OnExhausted {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
