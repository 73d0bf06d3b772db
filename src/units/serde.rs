//! Sizes and limits in configuration files: as the text that they print, or a plain number of
//! bytes.
//!
//! ```
//! # #[cfg(feature = "serde")] {
//! use memcg::{Limit, Limits};
//!
//! let limits: Limits = serde_json::from_str(r#"{"max": "512MiB", "low": 4096}"#)?;
//! assert_eq!((limits.max, limits.low), (Some(Limit::Bytes(512 << 20)), Some(Limit::Bytes(4096))));
//! assert!(serde_json::from_str::<Limit>("-1").unwrap_err().to_string().starts_with("invalid value: integer `-1`"));
//! assert!(serde_json::to_string(&limits)?.contains(r#""max":"512 MiB""#));
//! # }
//! # Ok::<(), serde_json::Error>(())
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Bytes, Limit, ParseLimitError, Percent};

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text(PhantomData))
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Limit::deserialize(deserializer)? {
            Limit::Percent(percent) => Ok(percent),
            other => Err(D::Error::custom(format_args!(
                "a percentage such as \"80%\" expected, {other} found"
            ))),
        }
    }
}

/// A text that parses, or a number of bytes.
struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err = ParseLimitError> + From<Bytes>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"64MiB\", or a number of bytes")
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<T, E> {
        Ok(Bytes(bytes).into())
    }

    /// TOML's numbers have a sign.
    fn visit_i64<E: Error>(self, bytes: i64) -> Result<T, E> {
        let bytes =
            u64::try_from(bytes).map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))?;
        self.visit_u64(bytes)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}
