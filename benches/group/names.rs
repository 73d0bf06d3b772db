//! Names of 16 bytes, made without formatting: a row would measure little else.

#![cfg(not(loom))]

/// Bytes of every name.
pub(crate) const LEN: usize = 16;

/// One name after the other, none twice.
pub(crate) struct Names {
    text: [u8; LEN],
}

impl Names {
    /// Of one thread of up to ten.
    pub(crate) fn new(thread: usize) -> Self {
        let mut text = *b"job0-00000000000";
        text[3] += u8::try_from(thread).expect("few threads");
        Names { text }
    }

    /// The next, by counting up the digits at its end.
    pub(crate) fn next(&mut self) -> &str {
        for digit in self
            .text
            .iter_mut()
            .rev()
            .take_while(|digit| digit.is_ascii_digit())
        {
            if *digit < b'9' {
                *digit += 1;
                break;
            }
            *digit = b'0';
        }
        std::str::from_utf8(&self.text).expect("letters and digits")
    }
}
