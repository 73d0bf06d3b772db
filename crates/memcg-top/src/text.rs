//! Figures and foreign texts as they may stand on a terminal.

use ratatui::text::Span;

/// Replaces what would steer a terminal or turn a line's direction: a service may be hostile.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if steers(c) { '\u{fffd}' } else { c })
        .collect()
}

/// The same for JSON: it has such a character in a text only, where an escape stands for it.
pub(crate) fn clean_json(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // All of them are below U+10000.
            c if steers(c) => clean.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => clean.push(c),
        }
    }
    clean
}

fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The columns that a text takes on a terminal: some characters take two, and some none.
pub(crate) fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// The end of a text that is wider than `most` columns.
pub(crate) fn ending(text: &str, most: usize) -> String {
    if columns(text) <= most {
        return text.into();
    }
    // One is the sign's that something is missing.
    let mut room = most.saturating_sub(1);
    let mut start = text.len();
    for (at, c) in text.char_indices().rev() {
        let width = columns(c.encode_utf8(&mut [0; 4]));
        if width > room {
            break;
        }
        room -= width;
        start = at;
    }
    format!("…{}", &text[start..])
}

/// Bytes in at most 7 columns, by powers of 1024.
pub(crate) fn bytes(bytes: u64) -> String {
    let mut unit = 0;
    let mut figure = bytes as f64;
    // Else the format would round to 1024.0.
    while figure >= 1023.95 && unit < 6 {
        figure /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes}B")
    } else {
        format!("{figure:.1}{}", [' ', 'K', 'M', 'G', 'T', 'P', 'E'][unit])
    }
}

/// A limit, where `u64::MAX` says that there is none.
pub(crate) fn limit(limit: u64) -> String {
    if limit == u64::MAX {
        "max".into()
    } else {
        bytes(limit)
    }
}

/// Hundredths of a per cent.
pub(crate) fn percent(hundredths: u32) -> String {
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

/// Bytes each second, with their sign.
pub(crate) fn rate(rate: Option<f64>) -> String {
    match rate {
        None => String::new(),
        Some(rate) if rate.abs() < 1.0 => "0".into(),
        Some(rate) => format!(
            "{}{}",
            if rate < 0.0 { '-' } else { '+' },
            bytes(rate.abs() as u64)
        ),
    }
}

/// A count or counts each second, in at most 6 columns.
pub(crate) fn count(count: f64) -> String {
    match count {
        _ if count >= 1e9 => format!("{:.0e}", count),
        _ if count >= 1e6 => format!("{:.0}M", count / 1e6),
        _ if count >= 1e4 => format!("{:.0}k", count / 1e3),
        _ if count >= 10.0 || count.fract() == 0.0 => format!("{count:.0}"),
        _ => format!("{count:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [bytes(0), bytes(1023), bytes(1024), bytes(1536 << 20)],
            ["0B", "1023B", "1.0K", "1.5G"]
        );
        assert_eq!(
            [bytes((1 << 20) - 1), bytes(u64::MAX), limit(u64::MAX)],
            ["1.0M", "16.0E", "max"]
        );
        assert_eq!(
            [rate(None), rate(Some(0.4)), rate(Some(-2048.0))],
            ["", "0", "-2.0K"]
        );
        assert_eq!(
            [
                count(0.0),
                count(1.25),
                count(42.0),
                count(12_345.0),
                count(2e19)
            ],
            ["0", "1.2", "42", "12k", "2e19"]
        );
        assert_eq!(
            [percent(0), percent(1_205), percent(10_000)],
            ["0.00%", "12.05%", "100.00%"]
        );
        for power in 0..64 {
            assert!(bytes((1_u64 << power) - 1).len() <= 7);
            assert!(count((1_u64 << power) as f64 * 1.01).len() <= 6);
        }
    }

    #[test]
    fn the_end_of_a_text_by_columns() {
        assert_eq!([columns("abc"), columns("名a"), columns("")], [3, 3, 0]);
        let ends = [5, 4, 3, 1, 0].map(|most| ending("ab/cd", most));
        assert_eq!(ends, ["ab/cd", "…/cd", "…cd", "…", "…"]);
        let wide = [7, 6, 5, 4].map(|most| ending("名前/x", most));
        assert_eq!(wide, ["名前/x", "名前/x", "…前/x", "…/x"]);
    }

    #[test]
    fn what_steers_a_terminal_is_replaced() {
        assert_eq!(
            clean("a\x1b[2J\u{9b}\u{202e}b\n"),
            "a\u{fffd}[2J\u{fffd}\u{fffd}b\u{fffd}"
        );
        assert_eq!(
            clean_json("\"\u{9b}\u{7f}é\u{202e}\""),
            "\"\\u009b\\u007fé\\u202e\""
        );
        let back: String = serde_json::from_str(&clean_json("\"\u{9b}\u{202e}\"")).unwrap();
        assert_eq!(back, "\u{9b}\u{202e}");
    }
}
