//! A naive second reading of the limit grammar, and the checks that hold it beside the real one.
//!
//! The property tests and the fuzz target share this file. It takes a text apart from its end
//! (unit first, then number) where the library goes from the front, so the two are wrong in
//! different places.

use memcg::errors::ParseLimitError;
use memcg::errors::ParseLimitErrorKind::{Empty, NotWhole, Overflow, PercentOutOfRange};
use memcg::{Bytes, Limit, Percent};

/// The meaning of `text`, or `None`; the library must agree on every text.
fn limit(text: &str) -> Option<Limit> {
    if text == "max" {
        return Some(Limit::Unlimited);
    }
    if let Some(digits) = text.strip_suffix('%') {
        let percent = u8::try_from(number(&plain(digits)?)?).ok()?;
        return Percent::new(percent).map(Limit::Percent);
    }
    size(text).map(Limit::Bytes)
}

/// The bytes of a text without `max` and percentages: written out without a point, times the unit,
/// cut at the point.
fn size(text: &str) -> Option<u64> {
    let (amount, factor) = unit(text);
    let (whole, fraction) = amount.split_once('.').unwrap_or((amount, "0"));
    if fraction.is_empty() || fraction.bytes().any(|b| !b.is_ascii_digit()) {
        return None;
    }
    let digits = times(&(plain(whole)? + fraction), factor);
    let (whole, rest) = digits.split_at(digits.len() - fraction.len());
    number(whole).filter(|_| rest.bytes().all(|b| b == b'0'))
}

/// A decimal number times a factor, by hand.
fn times(digits: &str, factor: u128) -> String {
    let mut carry = 0;
    let mut product = Vec::new();
    for digit in digits.bytes().rev() {
        carry += u128::from(digit - b'0') * factor;
        product.push(b'0' + (carry % 10) as u8);
        carry /= 10;
    }
    product.reverse();
    carry.to_string() + std::str::from_utf8(&product).expect("digits")
}

/// Cuts the unit, and one blank before it, off the end.
fn unit(text: &str) -> (&str, u128) {
    let (stem, base) = match text {
        binary if binary.ends_with("iB") => (&binary[..binary.len() - 2], 1_024_u128),
        decimal if decimal.ends_with('B') => (&decimal[..decimal.len() - 1], 1_000),
        bare => (bare, 1_024),
    };
    let prefix = stem
        .chars()
        .next_back()
        .and_then(|last| "kmgtpe".find(last.to_ascii_lowercase()));
    let (amount, factor) = match prefix {
        Some(power) => (&stem[..stem.len() - 1], base.pow(power as u32 + 1)),
        None if base == 1_000 => (stem, 1),
        None => return (text, 1),
    };
    (amount.strip_suffix(' ').unwrap_or(amount), factor)
}

/// Digits in groups that single underscores part, without those.
fn plain(digits: &str) -> Option<String> {
    let well_formed = |group: &str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit());
    digits
        .split('_')
        .all(well_formed)
        .then(|| digits.replace('_', ""))
}

fn number(digits: &str) -> Option<u64> {
    match digits.trim_start_matches('0') {
        "" => Some(0),
        significant => significant.parse().ok(),
    }
}

/// Every property that must hold for every text; panics with the text where one does not.
pub(crate) fn check(text: &str) {
    let parsed = text.parse::<Limit>();
    assert_eq!(
        parsed.clone().ok(),
        limit(text),
        "the twins disagree on {text:?}"
    );
    match parsed.clone() {
        Ok(limit) => check_printed(text, limit),
        Err(fault) => check_fault(text, fault),
    }
    match text.parse::<Bytes>() {
        Ok(bytes) => assert_eq!(parsed, Ok(Limit::from(bytes)), "of {text:?}"),
        Err(fault) => {
            assert!(
                !matches!(parsed, Ok(Limit::Bytes(_))),
                "only one form accepts {text:?}"
            );
            check_fault(text, fault);
        }
    }
}

/// The printed text parses back, and so does the exact form of bytes.
fn check_printed(text: &str, limit: Limit) {
    assert_eq!(
        limit.to_string().parse(),
        Ok(limit),
        "printed form of {text:?}"
    );
    if let Limit::Bytes(bytes) = limit {
        assert_eq!(
            format!("{:#}", Bytes(bytes)).parse(),
            Ok(Bytes(bytes)),
            "of {text:?}"
        );
    }
}

/// The position is one of the text's, and what stands before it is not to blame.
fn check_fault(text: &str, fault: ParseLimitError) {
    let position = fault.position();
    let kind = fault.kind();
    assert!(
        text.starts_with(fault.input()) && (fault.input() == text || text.len() > 64),
        "{fault} of {text:?}"
    );
    assert!(
        text.is_char_boundary(position),
        "{fault} cuts a character of {text:?}"
    );
    assert_eq!(kind == Empty, text.is_empty(), "of {text:?}");
    let said = fault.to_string();
    assert!(
        said.starts_with(&format!("{:?} is no ", fault.input())),
        "{said}"
    );
    assert!(
        said.contains(&format!(" at byte {position}; expected ")),
        "{said}"
    );

    // The blank before a unit is the one part that is no text of its own.
    let before = &text[..position];
    let before = before.strip_suffix(' ').unwrap_or(before);
    if let Err(earlier) = before.parse::<Limit>() {
        // A text has to be well formed before its value is looked at.
        let of_value = matches!(earlier.kind(), NotWhole | Overflow | PercentOutOfRange);
        assert!(
            of_value || earlier.position() == before.len(),
            "{fault} comes late in {text:?}, after {earlier}"
        );
    }
}
