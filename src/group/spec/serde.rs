//! A spec from a file of any format.
//!
//! The keys of a group are those of [`Limits`], `oom_policy` and `groups`. `Limits` reads its own
//! keys, from a map that leaves the other two out. Each error has the path of its group. Keys and
//! values are refused while the format reads them, so that it adds the line.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

use super::super::limits::Limits;
use super::{GroupSpec, SpecPath};
use crate::state::oom::OomPolicy;

const OOM_POLICY: &str = "oom_policy";
const GROUPS: &str = "groups";

impl<'de> Deserialize<'de> for GroupSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GroupSpec, D::Error> {
        SpecAt(&SpecPath::TOP).deserialize(deserializer)
    }
}

/// Reads the spec of the group at that path.
#[derive(Clone, Copy)]
struct SpecAt<'a>(&'a SpecPath<'a>);

impl<'de> DeserializeSeed<'de> for SpecAt<'_> {
    type Value = GroupSpec;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<GroupSpec, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SpecAt<'_> {
    type Value = GroupSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map of the limits of {}", self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<GroupSpec, A::Error> {
        let (mut oom_policy, mut groups) = (None, None);
        let limits = Limits::deserialize(GroupFields {
            path: self.0,
            map: &mut map,
            of_limits: &[],
            read: "",
            oom_policy: &mut oom_policy,
            groups: &mut groups,
        })?;
        let spec = GroupSpec {
            limits,
            oom_policy: oom_policy.flatten(),
            groups: groups.unwrap_or_default(),
        };
        spec.check_limits(self.0).map_err(A::Error::custom)?;
        Ok(spec)
    }
}

// === The fields of a group ===

/// A map as [`Limits`] sees it. What is none of its fields is read on the way.
struct GroupFields<'a, A> {
    path: &'a SpecPath<'a>,
    map: &'a mut A,
    of_limits: &'static [&'static str],
    /// The key whose value comes next.
    read: &'static str,
    oom_policy: &'a mut Option<Option<OomPolicy>>,
    groups: &'a mut Option<BTreeMap<String, GroupSpec>>,
}

impl<'de, A: MapAccess<'de>> Deserializer<'de> for GroupFields<'_, A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.of_limits = fields;
        visitor.visit_map(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for GroupFields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        loop {
            let key = Key {
                path: self.path,
                of_limits: self.of_limits,
            };
            let Some(key) = self.map.next_key_seed(key)? else {
                return Ok(None);
            };
            // `Limits` finds its own doubles, and these two never reach it. Where a later line wins
            // silently, half of the file is not what its reader believes.
            let twice = || A::Error::custom(format_args!("{}: duplicate field `{key}`", self.path));
            self.read = key;
            match key {
                OOM_POLICY if self.oom_policy.is_some() => return Err(twice()),
                OOM_POLICY => *self.oom_policy = Some(self.next_value()?),
                GROUPS if self.groups.is_some() => return Err(twice()),
                GROUPS => *self.groups = Some(self.map.next_value_seed(Groups(self.path))?),
                key => return seed.deserialize(key.into_deserializer()).map(Some),
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(ValueAt {
            path: self.path,
            key: self.read,
            seed,
        })
    }
}

struct Key<'a> {
    path: &'a SpecPath<'a>,
    of_limits: &'static [&'static str],
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a field of {}", self.path)
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<&'static str, E> {
        let fields = || self.of_limits.iter().copied().chain([OOM_POLICY, GROUPS]);
        fields().find(|field| *field == key).ok_or_else(|| {
            let expected: Vec<_> = fields().map(|field| format!("`{field}`")).collect();
            E::custom(format_args!(
                "{}: unknown field `{}`, expected one of {}",
                self.path,
                key.escape_debug(),
                expected.join(", ")
            ))
        })
    }
}

/// A value of a group's field. Its error names both.
struct ValueAt<'a, V> {
    path: &'a SpecPath<'a>,
    key: &'static str,
    seed: V,
}

impl<'de, V: DeserializeSeed<'de>> DeserializeSeed<'de> for ValueAt<'_, V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        // A file may have a thousand groups: the error says which of them, and which field.
        let placed = |error: D::Error| {
            let error = error.to_string();
            D::Error::custom(format_args!(
                "{}: {}: {}",
                self.path,
                self.key,
                error.trim_end()
            ))
        };
        self.seed.deserialize(deserializer).map_err(placed)
    }
}

// === The groups below ===

/// Reads the groups below that path.
#[derive(Clone, Copy)]
struct Groups<'a>(&'a SpecPath<'a>);

impl<'de> DeserializeSeed<'de> for Groups<'_> {
    type Value = BTreeMap<String, GroupSpec>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Groups<'_> {
    type Value = BTreeMap<String, GroupSpec>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map of the groups below {}, by their names", self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut groups = BTreeMap::new();
        loop {
            let name = NewName {
                parent: self.0,
                taken: &groups,
            };
            let Some(name) = map.next_key_seed(name)? else {
                return Ok(groups);
            };
            let spec = {
                let path = self.0.below(&name).map_err(A::Error::custom)?;
                map.next_value_seed(SpecAt(&path))?
            };
            groups.insert(name, spec);
        }
    }
}

struct NewName<'a> {
    parent: &'a SpecPath<'a>,
    taken: &'a BTreeMap<String, GroupSpec>,
}

impl NewName<'_> {
    fn of<E: Error>(self, name: &impl Display) -> Result<String, E> {
        let name = name.to_string();
        let path = self.parent.below(&name).map_err(E::custom)?;
        if self.taken.contains_key(&name) {
            return Err(E::custom(format_args!("{path}: there are two of the name")));
        }
        Ok(name)
    }
}

impl<'de> DeserializeSeed<'de> for NewName<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// In some formats a key may be a number.
impl Visitor<'_> for NewName<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the name of a group below {}", self.parent)
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<String, E> {
        self.of(&name)
    }

    fn visit_u64<E: Error>(self, name: u64) -> Result<String, E> {
        self.of(&name)
    }

    fn visit_i64<E: Error>(self, name: i64) -> Result<String, E> {
        self.of(&name)
    }
}
