//! A naive second reading of the limit grammar, and the checks that hold it beside the real one.
//!
//! The property tests and the fuzz target share this file. It takes a text apart from its end
//! (unit first, then number) where the library goes from the front, so the two are wrong in
//! different places.

use memcg::ParseLimitErrorKind::{Empty, Overflow, PercentOutOfRange};
use memcg::{Bytes, Limit, ParseLimitError, Percent};

/// What `text` means, or `None`; the library must agree on every text.
fn limit(text: &str) -> Option<Limit> {
    if text == "max" {
        return Some(Limit::Max);
    }
    if let Some(digits) = text.strip_suffix('%') {
        let percent = u8::try_from(number(digits)?).ok()?;
        return Percent::new(percent).map(Limit::Percent);
    }
    size(text).map(Limit::Bytes)
}

/// The bytes of a text without `max` and percentages.
fn size(text: &str) -> Option<u64> {
    let (digits, factor) = unit(text);
    u64::try_from(number(digits)?.checked_mul(factor)?).ok()
}

/// Cuts the unit, and one blank before it, off the end.
fn unit(text: &str) -> (&str, u128) {
    let is_iec = text.ends_with("iB");
    let stem = text.strip_suffix("iB").unwrap_or(text);
    let (digits, factor) = match stem.as_bytes() {
        [.., b'K' | b'k'] => (&stem[..stem.len() - 1], 1 << 10),
        [.., b'M' | b'm'] => (&stem[..stem.len() - 1], 1 << 20),
        [.., b'G' | b'g'] => (&stem[..stem.len() - 1], 1 << 30),
        [.., b'T' | b't'] => (&stem[..stem.len() - 1], 1 << 40),
        [.., b'P' | b'p'] => (&stem[..stem.len() - 1], 1 << 50),
        [.., b'E' | b'e'] => (&stem[..stem.len() - 1], 1 << 60),
        [.., b'B'] if !is_iec => (&stem[..stem.len() - 1], 1),
        _ => return (text, 1),
    };
    (digits.strip_suffix(' ').unwrap_or(digits), factor)
}

/// Digits in groups that single underscores part.
fn number(digits: &str) -> Option<u128> {
    let well_formed = |group: &str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit());
    if !digits.split('_').all(well_formed) {
        return None;
    }
    let plain = digits.replace('_', "");
    let significant = plain.trim_start_matches('0');
    match significant {
        "" => Some(0),
        // More than 64 bits can hold, in a value that any unit keeps out of range.
        long if long.len() > 20 => Some(u128::from(u64::MAX) + 1),
        short => short.parse().ok(),
    }
}

/// Every property that must hold for every text; panics with the text where one does not.
pub(crate) fn check(text: &str) {
    let parsed = text.parse::<Limit>();
    assert_eq!(parsed.ok(), limit(text), "the twins disagree on {text:?}");
    match parsed {
        Ok(limit) => check_printed(text, limit),
        Err(fault) => check_fault(text, fault),
    }
    match text.parse::<Bytes>() {
        Ok(bytes) => assert_eq!(parsed, Ok(Limit::from(bytes)), "of {text:?}"),
        Err(fault) => {
            assert!(!matches!(parsed, Ok(Limit::Bytes(_))), "only one form accepts {text:?}");
            check_fault(text, fault);
        }
    }
}

/// What is printed parses back, and so does the exact form of bytes.
fn check_printed(text: &str, limit: Limit) {
    assert_eq!(limit.to_string().parse(), Ok(limit), "printed form of {text:?}");
    if let Limit::Bytes(bytes) = limit {
        assert_eq!(format!("{:#}", Bytes(bytes)).parse(), Ok(Bytes(bytes)), "of {text:?}");
    }
}

/// The position is one of the text's, and what stands before it is not to blame.
fn check_fault(text: &str, fault: ParseLimitError) {
    let ParseLimitError { position, kind } = fault;
    assert!(text.is_char_boundary(position), "{fault} cuts a character of {text:?}");
    assert_eq!(kind == Empty, text.is_empty(), "of {text:?}");
    assert!(fault.to_string().ends_with(&format!("at byte {position}")), "{fault}");

    // The blank before a unit is the one part that is no text of its own.
    let before = &text[..position];
    let before = before.strip_suffix(' ').unwrap_or(before);
    if let Err(earlier) = before.parse::<Limit>() {
        // A text has to be well formed before its value is looked at.
        let of_value = matches!(earlier.kind, Overflow | PercentOutOfRange);
        assert!(of_value || earlier.position == before.len(), "{fault} comes late in {text:?}, after {earlier}");
    }
}
