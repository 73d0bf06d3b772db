//! Specs from JSON and TOML: what they may say, and each way to be wrong. An error has the path of
//! its group, and the format adds the line.

use memcg::{GroupSpec, Limit, Limits, OomPolicy, Runtime};

const TOML: &str = "\
max = \"1 GiB\"
oom_policy = \"choose\"

[groups.acme]
max = \"50%\"
low = 4096
elevated = \"80%\"
importance = 3

[groups.acme.groups.batch]
share = 1

[groups.acme.groups.17]
share = 3

[groups.\"a.b\"]
cover_allocations = true
";

fn spec() -> GroupSpec {
    let acme = Limits::new()
        .max(Limit::percent(50))
        .low(4096)
        .importance(3);
    let mut acme = GroupSpec::new().limits(acme);
    acme.limits.elevated = memcg::Percent::new(80);
    let share = |share| GroupSpec::new().limits(Limits::new().share(share));
    let covers = GroupSpec::new().limits(Limits::new().cover_allocations());
    GroupSpec::new()
        .limits(Limits::new().max(Limit::gib(1)))
        .oom_policy(OomPolicy::Choose)
        .group("acme", acme.group("batch", share(1)).group("17", share(3)))
        .group("a.b", covers)
}

#[test]
fn both_formats_say_the_same() {
    let of_toml: GroupSpec = toml::from_str(TOML).expect("TOML");
    assert_eq!(of_toml, spec());
    let json = serde_json::to_string(&spec()).expect("plain data");
    assert_eq!(
        serde_json::from_str::<GroupSpec>(&json).expect("JSON"),
        spec()
    );
    let text = toml::to_string(&spec()).expect("plain data");
    assert_eq!(
        toml::from_str::<GroupSpec>(&text).expect("TOML"),
        spec(),
        "{text}"
    );
    assert!(
        !text.contains("soft") && !text.contains("false"),
        "what is not named is left out: {text}"
    );
    let runtime = Runtime::builder().build().expect("a runtime");
    of_toml.apply(&runtime.root()).expect("it holds");
    assert_eq!(
        runtime
            .root()
            .child("acme")
            .and_then(|acme| acme.child(17))
            .map(|group| group.limits().share),
        Some(Some(3))
    );
}

#[test]
fn nothing_is_needed() {
    let empty = GroupSpec::new();
    assert_eq!(toml::from_str::<GroupSpec>("").expect("no line"), empty);
    let json = r#"{"max": null, "oom_policy": null, "groups": {}}"#;
    assert_eq!(
        serde_json::from_str::<GroupSpec>(json).expect("JSON"),
        empty
    );
    assert_eq!(serde_json::to_string(&empty).expect("plain data"), "{}");
}

/// The message of TOML without its picture of the line, and the line.
fn wrong(text: &str) -> (usize, String) {
    let error = toml::from_str::<GroupSpec>(text).expect_err(text);
    let at = error.span().expect("a place").start;
    (
        text[..at].matches('\n').count() + 1,
        error.message().to_owned(),
    )
}

#[test]
fn each_fault_has_its_path_and_its_line() {
    let fields = "expected one of `min`, `low`, `high`, `max`, `soft`, `share`, `reclaim_above`, \
                  `elevated`, `critical`, `cover_allocations`, `importance`";
    for (old, new, line, message) in [
        (
            "share = 1",
            "shares = 1",
            11,
            "/acme/batch: unknown field `shares`, ",
        ),
        (
            "oom_policy",
            "oom-policy",
            2,
            "/: unknown field `oom-policy`, ",
        ),
        (
            "groups.batch",
            "group.batch",
            10,
            "/acme: unknown field `group`, ",
        ),
        ("\"50%\"", "\"50 %%\"", 5, "/acme: max: "),
        (
            "\"50%\"",
            "-1",
            5,
            "/acme: max: invalid value: integer `-1`, expected a size",
        ),
        (
            "\"80%\"",
            "80",
            7,
            "/acme: elevated: a percentage such as \"80%\" expected",
        ),
        (
            "low = 4096",
            "low = \"2 GiB\"\nhigh = \"1 GiB\"",
            4,
            "/acme: low 2 GiB is above high 1 GiB: ",
        ),
        (
            "share = 1",
            "share = \"much\"",
            11,
            "/acme/batch: share: invalid type: string \"much\"",
        ),
        (
            "share = 1",
            "share = -1",
            11,
            "/acme/batch: share: invalid value: integer `-1`",
        ),
        (
            "true",
            "1",
            17,
            "/a.b: cover_allocations: invalid type: integer `1`",
        ),
        (
            "choose",
            "kill",
            2,
            "/: oom_policy: unknown variant `kill`, expected one of `inherit`, `refuse`, `choose`",
        ),
        (
            "groups.17",
            "groups.\"a/b\"",
            13,
            "cannot create \"a/b\" in /acme: a name has no `/`",
        ),
        (
            "groups.17",
            "groups.\"\"",
            13,
            "cannot create \"\" in /acme: a name is not empty",
        ),
        (
            "[groups.acme.groups.17]\nshare = 3",
            "[groups.globex]\ngroups = 3",
            14,
            "invalid type: integer `3`, expected a map of the groups below /globex",
        ),
        (
            "[groups.acme.groups.17]\nshare = 3",
            "[groups]\nglobex = 3",
            14,
            "",
        ),
    ] {
        assert!(TOML.contains(old));
        let text = TOML.replacen(old, new, 1);
        let (at, said) = wrong(&text);
        if message.is_empty() {
            continue; // a table that is given twice: TOML's own
        }
        assert!(
            said.starts_with(message) && at == line,
            "{at}: {said}\n{text}"
        );
        if said.contains("unknown field") {
            assert!(
                said.contains(fields) && said.ends_with("`oom_policy`, `groups`"),
                "{said}"
            );
        }
    }
    let (line, said) = wrong("max = 1\n\n[groups]\nglobex = 3\n");
    assert_eq!(
        (line, said.as_str()),
        (
            4,
            "invalid type: integer `3`, expected a map of the limits of /globex"
        )
    );
}

#[test]
fn json_has_the_path_and_the_line() {
    let wrong = |json: &str| {
        serde_json::from_str::<GroupSpec>(json)
            .expect_err(json)
            .to_string()
    };
    let said = wrong("{\"groups\": {\n\"acme\": {\"groups\": {\"b\": {\n\"maximum\": 1}}}}}");
    assert!(
        said.starts_with("/acme/b: unknown field `maximum`, expected one of `min`")
            && said.contains(" at line 3 "),
        "{said}"
    );
    let said = wrong("{\"groups\": {\n\"acme\": {\"max\":\n \"8 MoB\"}}}");
    assert!(
        said.starts_with("/acme: max: ") && said.contains("8 MoB") && said.contains(" at line 3 "),
        "{said}"
    );
    assert_eq!(said.matches(" at line").count(), 1, "{said}");
    for (json, start) in [
        (r#"{"max": 1, "max": 2}"#, "duplicate field `max`"),
        (
            r#"{"oom_policy": null, "oom_policy": "choose"}"#,
            "/: duplicate field `oom_policy`",
        ),
        (
            r#"{"groups": {"a": {"groups": {}, "groups": {}}}}"#,
            "/a: duplicate field `groups`",
        ),
        (
            r#"{"groups": {"a": {"groups": {"b": {}, "b": {}}}}}"#,
            "/a/b: there are two of the name",
        ),
        (
            r#"{"groups": {"a": null}}"#,
            "invalid type: null, expected a map of the limits of /a",
        ),
        (
            r#"{"groups": null}"#,
            "invalid type: null, expected a map of the groups below /",
        ),
        (
            "[]",
            "invalid type: sequence, expected a map of the limits of /",
        ),
        (
            r#"{"groups": {"a\nb": {}}}"#,
            "cannot create \"a\\nb\" in /: a name has no control characters",
        ),
        (r#"{"a\nb": 1}"#, "/: unknown field `a\\nb`, expected"),
    ] {
        assert!(wrong(json).starts_with(start), "{}", wrong(json));
    }
}

#[test]
fn what_is_nested_too_deep() {
    let nested = |levels: usize| {
        let (open, close) = ("{\"groups\":{\"n\":".repeat(levels), "}}".repeat(levels));
        serde_json::from_str::<GroupSpec>(&format!("{open}{{}}{close}"))
    };
    assert!(nested(GroupSpec::DEPTH_MAX).is_ok());
    let said = nested(GroupSpec::DEPTH_MAX + 1)
        .expect_err("too deep")
        .to_string();
    assert!(
        said.contains("/n: a spec has at most 32 levels of groups at line 1"),
        "{said}"
    );
    assert!(nested(100_000).is_err());
    let header = ["groups.n"; GroupSpec::DEPTH_MAX + 1].join(".");
    let (line, said) = wrong(&format!("max = 2\n[{header}]\nmax = 1\n"));
    assert!(
        line == 2 && said.ends_with("/n: a spec has at most 32 levels of groups"),
        "{line}: {said}"
    );
}

/// In some formats a key may be a number.
#[test]
fn names_that_are_numbers() {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, MapDeserializer};

    struct Groups;
    impl<'de> serde::Deserializer<'de> for Groups {
        type Error = Error;

        fn deserialize_any<V: serde::de::Visitor<'de>>(
            self,
            visitor: V,
        ) -> Result<V::Value, Error> {
            visitor.visit_map(MapDeserializer::new(
                [(17_u64, Empty), (18, Empty)].into_iter(),
            ))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
            unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
        }
    }
    impl IntoDeserializer<'_, Error> for Groups {
        type Deserializer = Groups;

        fn into_deserializer(self) -> Groups {
            self
        }
    }

    struct Empty;
    impl<'de> serde::Deserializer<'de> for Empty {
        type Error = Error;

        fn deserialize_any<V: serde::de::Visitor<'de>>(
            self,
            visitor: V,
        ) -> Result<V::Value, Error> {
            visitor.visit_map(MapDeserializer::new(std::iter::empty::<(&str, u64)>()))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
            unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
        }
    }
    impl IntoDeserializer<'_, Error> for Empty {
        type Deserializer = Empty;

        fn into_deserializer(self) -> Empty {
            self
        }
    }

    let map = MapDeserializer::new([("groups", Groups)].into_iter());
    let spec = <GroupSpec as serde::Deserialize>::deserialize(map).expect("two groups");
    let names: Vec<_> = spec.groups.keys().map(String::as_str).collect();
    assert_eq!(names, ["17", "18"]);
}
