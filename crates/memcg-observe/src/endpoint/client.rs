//! One client: what it is asked for or given, and for how long.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::PollFlags;

use super::answers::error;
use super::turns::Asked;
use super::{LINE_MAX, PATIENCE};

pub(super) struct Client {
    pub(super) number: u64,
    pub(super) stream: UnixStream,
    pub(super) may_set: bool,
    pub(super) state: State,
    /// Bytes that have been read, of questions that are not asked yet.
    pub(super) input: Vec<u8>,
    /// The question whose turn has not come.
    pub(super) asked: Option<Asked>,
    /// True if the client says no more. What it has said before is answered.
    pub(super) ended: bool,
    /// Since when it has been idle, sending, or taking.
    pub(super) since: Instant,
}

pub(super) enum State {
    Asking,
    Setting,
    /// The answer, and how much of it has been taken. Then the client is dropped or may ask again.
    Answering {
        line: Arc<Vec<u8>>,
        sent: usize,
        last: bool,
    },
    /// The client has gone, or has its last answer.
    Gone,
}

impl Client {
    pub(super) fn unsent(&self) -> usize {
        match &self.state {
            State::Answering { line, sent, .. } => line.len() - sent,
            _ => 0,
        }
    }

    /// True if it has a question, or all that it has said is one.
    pub(super) fn has_question(&self) -> bool {
        let is_whole = self.input.contains(&b'\n') || self.ended && !self.input.is_empty();
        matches!(self.state, State::Asking) && (self.asked.is_some() || is_whole)
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Asking) && self.input.is_empty() && self.asked.is_none()
    }

    /// True if the service waits for it: to end its question, or to take its answer. One whose
    /// question waits for its turn, or whose limit is being set, waits for the service.
    pub(super) fn is_slow(&self) -> bool {
        !matches!(self.state, State::Setting) && !self.is_idle() && !self.has_question()
    }

    /// Takes the next question out of what has been read.
    pub(super) fn take_question(&mut self) {
        if !matches!(self.state, State::Asking) || self.asked.is_some() {
            return;
        }
        let end = match self.input.iter().position(|&byte| byte == b'\n') {
            Some(end) => end,
            None if self.input.len() >= LINE_MAX => {
                return self.say(Arc::new(error("the question is longer than 4 KiB")), true);
            }
            None if !self.ended => return,
            // Mutation: a-client-that-ends-without-a-question-is-kept
            None if self.input.is_empty() => return self.state = State::Gone,
            // The last line has no end but that of the client's half.
            None => self.input.len(),
        };
        self.asked = Some(Asked::parse(&self.input[..end]));
        self.input.drain(..self.input.len().min(end + 1));
    }

    /// Reads what is there. False: the client is gone.
    fn read(&mut self) -> bool {
        let mut bytes = [0; LINE_MAX];
        let room = LINE_MAX - self.input.len().min(LINE_MAX);
        match self.stream.read(&mut bytes[..room]) {
            // Without room the system reads nothing, which is no end.
            Ok(0) if room > 0 => self.ended = true,
            Ok(read) => {
                if self.input.is_empty() {
                    self.since = Instant::now();
                }
                self.input.extend_from_slice(&bytes[..read]);
            }
            Err(fault) => {
                return matches!(fault.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
            }
        }
        true
    }

    /// Writes as much as the client takes. False: the client is gone, or all is said.
    fn write(&mut self) -> bool {
        let State::Answering { line, sent, last } = &mut self.state else {
            return true;
        };
        match self.stream.write(&line[*sent..]) {
            Ok(written) => *sent += written,
            Err(fault) => {
                return matches!(fault.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
            }
        }
        if *sent < line.len() {
            return true;
        }
        let is_last = *last || self.ended && self.input.is_empty();
        self.state = State::Asking;
        self.since = Instant::now();
        !is_last
    }

    pub(super) fn say(&mut self, line: Arc<Vec<u8>>, last: bool) {
        self.state = State::Answering {
            line,
            sent: 0,
            last,
        };
        self.since = Instant::now();
        // Most answers are taken at once.
        if !self.write() {
            self.state = State::Gone;
        }
    }
}

/// Reads from and writes to one client. False: it is to be dropped.
pub(super) fn keep(client: &mut Client, events: PollFlags) -> bool {
    if events.intersects(PollFlags::ERR | PollFlags::NVAL) {
        return false;
    }
    let goes_on = match client.state {
        // The endpoint answers what it has read before it reads more, so the client's room is
        // bounded.
        State::Asking if client.has_question() => true,
        State::Asking if !client.ended && events.intersects(PollFlags::IN | PollFlags::HUP) => {
            client.read()
        }
        State::Answering { .. } if events.intersects(PollFlags::OUT | PollFlags::HUP) => {
            client.write()
        }
        State::Setting => !events.contains(PollFlags::HUP),
        State::Gone => false,
        _ => true,
    };
    goes_on && !(client.is_slow() && client.since.elapsed() > PATIENCE)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// True if a client is kept that has been in this state for so long, and does nothing.
    fn is_kept(state: State, input: &[u8], seconds: u64) -> bool {
        let (stream, _peer) = UnixStream::pair().expect("a pair of sockets");
        let since = Instant::now()
            .checked_sub(Duration::from_secs(seconds))
            .expect("the machine runs for longer");
        let input = input.to_vec();
        let asked = None;
        let mut client = Client {
            number: 1,
            stream,
            may_set: true,
            state,
            input,
            asked,
            ended: false,
            since,
        };
        keep(&mut client, PollFlags::empty())
    }

    #[test]
    fn patience_has_an_end() {
        let line = Arc::new(b"{\"ok\":null}\n".to_vec());
        let answering = || State::Answering {
            line: Arc::clone(&line),
            sent: 3,
            last: false,
        };
        let seconds = [PATIENCE.as_secs() - 1, PATIENCE.as_secs() + 1];
        assert_eq!(
            seconds.map(|seconds| is_kept(State::Asking, b"{\"get\":", seconds)),
            [true, false]
        );
        assert_eq!(
            seconds.map(|seconds| is_kept(answering(), b"", seconds)),
            [true, false]
        );
        // The one that waits for a limit or for its turn is not slow; the one that asks nothing is
        // idle.
        assert_eq!(
            seconds.map(|seconds| is_kept(State::Asking, b"{}\n", seconds)),
            [true, true]
        );
        assert_eq!(
            seconds.map(|seconds| is_kept(State::Setting, b"", seconds)),
            [true, true]
        );
        assert_eq!(
            seconds.map(|seconds| is_kept(State::Asking, b"", seconds)),
            [true, true]
        );
    }
}
