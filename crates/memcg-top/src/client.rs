//! The service's socket: one question, one answer, within bounds of bytes and of time. After a
//! fault the next question opens a new connection.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memcg_observe::protocol::{Answer, Incident, Question, ROWS_MAX, Rows};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::sample::Branch;

/// Bytes of an answer. A service sends 4 MiB at most.
const ANSWER_MAX: usize = 5 << 20;
/// The time that a question and its answer may take.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("the connection ended: {0}")]
    Io(#[from] io::Error),
    #[error("the service has closed the connection")]
    Closed,
    #[error("no whole answer within {} s", PATIENCE.as_secs())]
    Slow,
    #[error("an answer is longer than 5 MiB")]
    TooLong,
    #[error("the answer is not what memcg-observe says: {0}")]
    Malformed(String),
    /// The service has understood, and says no.
    #[error("the service says: {0}")]
    Refused(String),
}

#[derive(Debug)]
pub(crate) struct Client {
    path: PathBuf,
    stream: Option<UnixStream>,
    patience: Duration,
}

impl Client {
    pub(crate) fn new(path: PathBuf) -> Client {
        Client {
            path,
            stream: None,
            patience: PATIENCE,
        }
    }

    /// Returns a group and the `top` largest of its children.
    pub(crate) fn branch(&mut self, path: &str, top: usize) -> Result<Branch, ClientError> {
        let top = top.min(ROWS_MAX);
        let Rows { rows, others } = self.ask(&Question::Rows {
            path: path.into(),
            depth: 1,
            top,
        })?;
        let mut rows = rows.into_iter();
        let branch = rows.next().map(|group| {
            // If no child is named, all is the group's own.
            let rest = others.first().map_or(group.usage, |&(_, bytes)| bytes);
            Branch {
                group,
                children: rows.collect(),
                rest,
            }
        });
        match branch {
            Some(branch) if branch.answers(path) && branch.children.len() <= top => Ok(branch),
            _ => {
                self.stream = None;
                Err(ClientError::Malformed(format!(
                    "it has other groups than {path} and those below it"
                )))
            }
        }
    }

    /// Returns the last `most` refusals and victims of a group, the oldest first.
    pub(crate) fn incidents(
        &mut self,
        path: &str,
        most: usize,
    ) -> Result<Vec<Incident>, ClientError> {
        let incidents: Vec<Incident> = self.ask(&Question::Incidents {
            path: path.into(),
            most,
        })?;
        if incidents.len() > most {
            self.stream = None;
            return Err(ClientError::Malformed(format!(
                "it has more than {most} incidents"
            )));
        }
        Ok(incidents)
    }

    /// Sets a limit.
    pub(crate) fn set(&mut self, path: &str, file: &str, to: &str) -> Result<(), ClientError> {
        let question = Question::Set {
            path: path.into(),
            file: file.into(),
            to: to.into(),
        };
        self.ask::<Option<IgnoredAny>>(&question).map(drop)
    }

    fn ask<T: for<'a> Deserialize<'a>>(&mut self, question: &Question) -> Result<T, ClientError> {
        let question = serde_json::to_string(question).map_err(io::Error::from)? + "\n";
        let result = self.line(&question).and_then(|line| {
            match serde_json::from_slice::<Answer<T>>(&line) {
                Ok(Answer::Ok(value)) => Ok(value),
                Ok(Answer::Error(what)) => Err(ClientError::Refused(what)),
                Err(fault) => Err(ClientError::Malformed(fault.to_string())),
            }
        });
        if !matches!(result, Ok(_) | Err(ClientError::Refused(_))) {
            self.stream = None;
        }
        result
    }

    fn line(&mut self, question: &str) -> Result<Vec<u8>, ClientError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(UnixStream::connect(&self.path).map_err(ClientError::Connect)?),
        };
        let until = Instant::now() + self.patience;
        stream.set_write_timeout(Some(self.patience))?;
        stream
            .write_all(question.as_bytes())
            .map_err(slow_or_gone)?;
        let mut line = Vec::new();
        let mut bytes = [0; 16 << 10];
        loop {
            // A service that sends a byte a second does not begin the time anew.
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::Slow);
            }
            stream.set_read_timeout(Some(left))?;
            let read = match stream.read(&mut bytes) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(read) => &bytes[..read],
                Err(fault) if fault.kind() == ErrorKind::Interrupted => continue,
                Err(fault) => return Err(slow_or_gone(fault)),
            };
            line.extend_from_slice(read);
            if line.len() > ANSWER_MAX {
                return Err(ClientError::TooLong);
            }
            match read.iter().position(|&byte| byte == b'\n') {
                // One question, one line.
                Some(end) if end + 1 == read.len() => return Ok(line),
                Some(_) => return Err(ClientError::Malformed("more than one line".into())),
                None => {}
            }
        }
    }
}

fn slow_or_gone(fault: io::Error) -> ClientError {
    match fault.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ClientError::Slow,
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ClientError::Closed,
        _ => ClientError::Io(fault),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use memcg_observe::protocol::Row;

    use super::*;

    /// A client's verdict on a service that answers the first question with `answer`, and true if a
    /// second one connects anew.
    fn said_of(answer: Vec<u8>, hangs: bool) -> (String, bool) {
        said_of_asked(answer, hangs, |client| client.branch("/", 5).unwrap_err())
    }

    fn said_of_asked(
        answer: Vec<u8>,
        hangs: bool,
        ask: impl FnOnce(&mut Client) -> ClientError,
    ) -> (String, bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let mut client = Client {
            patience: Duration::from_millis(300),
            ..Client::new(path)
        };
        let service = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&answer);
            if hangs {
                // Until the client has left.
                let _ = stream.read(&mut [0]);
            }
        });
        let said = ask(&mut client).to_string();
        let kept = client.stream.is_some();
        drop(client);
        service.join().unwrap();
        (said, kept)
    }

    #[test]
    fn a_hostile_service_gets_an_error_and_a_new_connection() {
        let row = |path: &str| {
            serde_json::to_string(&Row {
                path: path.into(),
                ..Row::default()
            })
            .unwrap()
        };
        let of_another = format!("{{\"ok\":{{\"rows\":[{}],\"others\":[]}}}}\n", row("/b"));
        let of_a_stranger = format!(
            "{{\"ok\":{{\"rows\":[{},{}],\"others\":[]}}}}\n",
            row("/"),
            row("/a/b")
        );
        let many = format!(
            "{{\"ok\":{{\"rows\":[{}{}],\"others\":[]}}}}\n",
            row("/"),
            format!(",{}", row("/a")).repeat(6)
        );
        let cases: [(&[u8], bool, &str); 11] = [
            (b"", false, "closed"),
            (b"{\"ok\":{\"rows\":[", false, "closed"),
            (b"", true, "no whole answer"),
            (b"{\"ok\":", true, "no whole answer"),
            (b"hello\n", true, "not what memcg-observe says"),
            (
                b"{\"ok\":{\"rows\":[],\"others\":[]}}\n",
                true,
                "other groups than /",
            ),
            (
                b"{\"ok\":{\"rows\":[{\"path\":\"/\",\"usage\":-1}],\"others\":[]}}\n",
                true,
                "not what",
            ),
            (
                b"{\"error\":\"no\"}\n{\"error\":\"no\"}\n",
                true,
                "more than one line",
            ),
            (of_another.as_bytes(), true, "other groups than /"),
            (of_a_stranger.as_bytes(), true, "other groups than /"),
            (many.as_bytes(), true, "other groups than /"),
        ];
        for (answer, hangs, expected) in cases {
            let (said, kept) = said_of(answer.to_vec(), hangs);
            assert!(
                said.contains(expected) && !kept,
                "{said}: {}",
                String::from_utf8_lossy(answer)
            );
        }
        assert_eq!(
            said_of(vec![b'x'; ANSWER_MAX + 1], true),
            ("an answer is longer than 5 MiB".into(), false)
        );
        let incident = serde_json::to_string(&Incident::default()).unwrap();
        let three = format!("{{\"ok\":[{incident},{incident},{incident}]}}\n").into_bytes();
        let said = said_of_asked(three, true, |client| client.incidents("/", 2).unwrap_err());
        assert_eq!(
            said,
            (
                "the answer is not what memcg-observe says: it has more than 2 incidents".into(),
                false
            )
        );
        // An answer, though not the one hoped for.
        assert_eq!(
            said_of(b"{\"error\":\"no\"}\n".to_vec(), true),
            ("the service says: no".into(), true)
        );
    }
}
