//! Sizes and limits as text: the grammar, its faults with their positions, and what is printed.
pub(crate) mod twin;

use memcg::errors::ParseLimitErrorKind;
use memcg::errors::ParseLimitErrorKind::{
    Empty, NotANumber, NotWhole, Overflow, PercentNotWhole, PercentOutOfRange, TrailingInput,
    UnknownUnit,
};
use memcg::{Bytes, Limit, Percent};
use proptest::prelude::*;

fn percent(percent: u8) -> Limit {
    Limit::Percent(Percent::new(percent).expect("at most 100"))
}

#[test]
fn sizes_and_limits_parse() {
    let accepted = [
        ("0", Limit::Bytes(0)),
        ("0B", Limit::Bytes(0)),
        ("007", Limit::Bytes(7)),
        ("1_000_000", Limit::Bytes(1_000_000)),
        ("4096B", Limit::Bytes(4_096)),
        ("64K", Limit::Bytes(64 << 10)),
        ("64k", Limit::Bytes(64 << 10)),
        ("64KiB", Limit::Bytes(64 << 10)),
        ("64kiB", Limit::Bytes(64 << 10)),
        ("64M", Limit::Bytes(64 << 20)),
        ("64MiB", Limit::Bytes(64 << 20)),
        ("64 MiB", Limit::Bytes(64 << 20)),
        ("64MB", Limit::Bytes(64_000_000)),
        ("64 mB", Limit::Bytes(64_000_000)),
        ("8GB", Limit::Bytes(8_000_000_000)),
        ("18EB", Limit::Bytes(18_000_000_000_000_000_000)),
        ("1.5GiB", Limit::Bytes(3 << 29)),
        ("0.5K", Limit::Bytes(512)),
        ("2.0", Limit::Bytes(2)),
        ("1.001 kB", Limit::Bytes(1_001)),
        ("0.0009765625KiB", Limit::Bytes(1)),
        (
            "15.999999999999999999132638262011596452794037759304046630859375EiB",
            Limit::Bytes(u64::MAX),
        ),
        ("1_024G", Limit::Bytes(1 << 40)),
        ("1T", Limit::Bytes(1 << 40)),
        ("1PiB", Limit::Bytes(1 << 50)),
        ("15E", Limit::Bytes(15 << 60)),
        ("18446744073709551615", Limit::Bytes(u64::MAX)),
        ("00000000000000000000000001", Limit::Bytes(1)),
        ("0%", percent(0)),
        ("25%", percent(25)),
        ("100%", percent(100)),
        ("max", Limit::Unlimited),
    ];
    for (text, limit) in accepted {
        assert_eq!(text.parse(), Ok(limit), "{text:?}");
        twin::check(text);
    }
}

#[test]
fn faults_name_their_position() {
    let rejected: [(&str, usize, ParseLimitErrorKind); 47] = [
        ("", 0, Empty),
        (" ", 0, NotANumber),
        (" 64M", 0, NotANumber),
        ("\t1", 0, NotANumber),
        ("-1", 0, NotANumber),
        ("+1", 0, NotANumber),
        ("MiB", 0, NotANumber),
        ("%", 0, NotANumber),
        ("Max", 0, NotANumber),
        ("_1", 0, NotANumber),
        ("1_", 2, NotANumber),
        ("1__0", 2, NotANumber),
        ("1_M", 2, NotANumber),
        ("٣", 0, NotANumber),
        ("64Mb", 2, UnknownUnit),
        ("64 MBi", 3, UnknownUnit),
        ("1.5%", 1, PercentNotWhole),
        ("64mib", 2, UnknownUnit),
        ("64b", 2, UnknownUnit),
        ("64iB", 2, UnknownUnit),
        ("64Z", 2, UnknownUnit),
        ("64µ", 2, UnknownUnit),
        ("0x40", 1, UnknownUnit),
        ("25 %", 2, TrailingInput),
        ("64M ", 3, TrailingInput),
        ("64  M", 2, TrailingInput),
        ("64\n", 2, TrailingInput),
        ("1.5.5", 3, TrailingInput),
        ("1.", 2, NotANumber),
        ("1.GiB", 2, NotANumber),
        ("1._5GiB", 2, NotANumber),
        ("1.5_0GiB", 3, TrailingInput),
        ("1.5", 1, NotWhole),
        ("0.3KiB", 1, NotWhole),
        ("1.0005kB", 1, NotWhole),
        ("19EB", 2, Overflow),
        ("18.5EB", 4, Overflow),
        ("1e3", 2, TrailingInput),
        ("max ", 3, TrailingInput),
        ("maximum", 3, TrailingInput),
        ("25%%", 3, TrailingInput),
        ("101%", 0, PercentOutOfRange),
        ("99999999999999999999999%", 0, PercentOutOfRange),
        ("18446744073709551616", 19, Overflow),
        ("99999999999999999999999", 19, Overflow),
        ("16EiB", 2, Overflow),
        ("17179869184 GiB", 12, Overflow),
    ];
    for (text, position, kind) in rejected {
        let fault = text.parse::<Limit>().expect_err("no limit");
        assert_eq!(
            (fault.position(), fault.kind()),
            (position, kind),
            "{text:?}"
        );
        twin::check(text);
    }
}

#[test]
fn bytes_are_neither_max_nor_a_percentage() {
    let fault = |text: &str| {
        text.parse::<Bytes>()
            .map_err(|fault| (fault.position(), fault.kind()))
    };
    assert_eq!(fault("max"), Err((0, NotANumber)));
    assert_eq!(fault("25%"), Err((2, UnknownUnit)));
    assert_eq!(fault(""), Err((0, Empty)));
}

#[test]
fn whole_numbers_and_constants_are_limits() {
    let limits = memcg::Limits::new()
        .max(512 << 20)
        .high("x".len())
        .low(Bytes(7))
        .min(Percent::new(3).expect("small"));
    assert_eq!(
        [limits.max, limits.high],
        [Some(Limit::mib(512)), Some(Limit::bytes(1))]
    );
    assert_eq!(
        [limits.low, limits.min],
        [Some(Limit::bytes(7)), Some(Limit::percent(3))]
    );
    assert_eq!(
        [Limit::kib(1), Limit::gib(1)],
        [Limit::bytes(1 << 10), Limit::bytes(1 << 30)]
    );
    assert_eq!(
        [Limit::kib(u64::MAX), Limit::gib(1 << 34)],
        [Limit::bytes(u64::MAX); 2]
    );
    assert_eq!(Limit::percent(101), Limit::percent(100));
}

#[test]
fn a_long_text_is_quoted_in_part() {
    let text = "7".repeat(63) + "\u{e9}" + &"7".repeat(100);
    let fault = text.parse::<Limit>().expect_err("no limit");
    assert_eq!(fault.input(), "7".repeat(63));
    assert!(fault.to_string().len() < 200, "{fault}");
}

#[test]
fn bytes_print_rounded_and_exact() {
    let printed = [
        (0, "0 B", "0 B"),
        (1, "1 B", "1 B"),
        (1_023, "1023 B", "1023 B"),
        (1_024, "1 KiB", "1 KiB"),
        (1_075, "1 KiB", "1075 B"),
        (1_076, "1.1 KiB", "1076 B"),
        (524_288, "512 KiB", "512 KiB"),
        (1_048_524, "1023.9 KiB", "1048524 B"),
        (1_048_525, "1 MiB", "1048525 B"),
        (1_048_575, "1 MiB", "1048575 B"),
        (3 << 29, "1.5 GiB", "1536 MiB"),
        (1 << 60, "1 EiB", "1 EiB"),
        (u64::MAX, "16 EiB", "18446744073709551615 B"),
    ];
    for (bytes, rounded, exact) in printed {
        assert_eq!(Bytes(bytes).to_string(), rounded);
        assert_eq!(format!("{:#}", Bytes(bytes)), exact);
        assert_eq!(Limit::Bytes(bytes).to_string(), exact);
    }
}

#[test]
fn printing_honours_width() {
    assert_eq!(format!("{:>8}|", Bytes(1 << 20)), "   1 MiB|");
    assert_eq!(format!("{:<5}|", Limit::Unlimited), "max  |");
    assert_eq!(format!("{:^5}|", percent(25)), " 25% |");
}

/// Each seed of the fuzz target, on the stable toolchain.
#[test]
fn fuzz_corpus_holds() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/limits_parse");
    let mut replayed = 0;
    for seed in std::fs::read_dir(corpus).expect("the corpus is committed") {
        let data = std::fs::read(seed.expect("listed").path()).expect("readable");
        if let Ok(text) = std::str::from_utf8(&data) {
            twin::check(text);
            replayed += 1;
        }
    }
    assert!(replayed >= 12, "only {replayed} seeds are text");
}

/// Texts near the grammar: its pieces in any order, and a stray one now and then.
fn near_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[0-9]{1,21}",
        2 => "[_ %.+-]",
        3 => "[KMGTPEkmgtpe]",
        2 => Just("iB".to_string()),
        2 => Just("B".to_string()),
        1 => "[.][0-9]{1,4}",
        1 => Just("max".to_string()),
        1 => any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

fn any_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        any::<u64>().prop_map(Limit::Bytes),
        (0_u64..16, 0_u32..64).prop_map(|(number, bits)| Limit::Bytes(number << bits)),
        (0_u8..=100).prop_map(percent),
        Just(Limit::Unlimited),
    ]
}

proptest! {
    #[test]
    fn twins_agree_near_the_grammar(text in near_text()) {
        twin::check(&text);
    }

    #[test]
    fn twins_agree_anywhere(text in ".*") {
        twin::check(&text);
    }

    #[test]
    fn printed_limits_parse_back(limit in any_limit()) {
        prop_assert_eq!(limit.to_string().parse(), Ok(limit));
    }

    #[test]
    fn exact_bytes_parse_back(bytes in any::<u64>()) {
        prop_assert_eq!(format!("{:#}", Bytes(bytes)).parse(), Ok(Bytes(bytes)));
    }

    /// The rounded form is off by at most half of its last decimal.
    #[test]
    fn rounded_bytes_are_near(bytes in any::<u64>(), bits in 0_u32..64) {
        let bytes = bytes >> bits;
        let text = Bytes(bytes).to_string();
        let (number, unit) = text.split_once(' ').expect("number and unit");
        let unit = match unit {
            "B" => 1.0,
            "KiB" => 1024_f64,
            "MiB" => 1024_f64.powi(2),
            "GiB" => 1024_f64.powi(3),
            "TiB" => 1024_f64.powi(4),
            "PiB" => 1024_f64.powi(5),
            "EiB" => 1024_f64.powi(6),
            other => return Err(TestCaseError::fail(format!("unit {other}"))),
        };
        let number: f64 = number.parse().expect("a decimal number");
        // A hair of slack for the doubles of this test itself.
        prop_assert!((number - bytes as f64 / unit).abs() <= 0.05 + 1e-9, "{} for {}", text, bytes);
        prop_assert!(number < 1024.0);
    }

    #[test]
    fn shares_round_down(percent in 0_u8..=100, whole in any::<u64>()) {
        let share = u128::from(Percent::new(percent).expect("at most 100").of(whole));
        let hundredfold = u128::from(whole) * u128::from(percent);
        prop_assert!(share * 100 <= hundredfold && hundredfold < (share + 1) * 100);
    }
}
