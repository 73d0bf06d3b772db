//! Asks the socket of a service, and prints each answer on a line:
//!
//! ```text
//! cargo run -p memcg-observe --features endpoint --example ask -- /run/app/memcg.sock '{"rows":{"path":"/","depth":1,"top":5}}'
//! ```
//!
//! It ends with 1 where an answer is an error.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(socket) = arguments.next() else {
        eprintln!(
            "ask SOCKET QUESTION..: {{\"get\":{{\"path\":\"/\",\"file\":\"memory.current\"}}}}"
        );
        return ExitCode::from(2);
    };
    match ask(&socket, arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(fault) => {
            eprintln!("{socket}: {fault}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether no answer is an error.
fn ask(socket: &str, questions: impl Iterator<Item = String>) -> io::Result<bool> {
    let mut service = BufReader::new(UnixStream::connect(socket)?);
    let mut all_ok = true;
    for question in questions {
        writeln!(service.get_mut(), "{}", question.replace('\n', " "))?;
        let mut answer = String::new();
        if service.read_line(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        all_ok &= !answer.starts_with("{\"error\"");
        print!("{answer}");
    }
    Ok(all_ok)
}
