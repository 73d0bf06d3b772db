//! All but what needs an allocator of its own: one program, which is compiled sooner than eight.

mod as_tokio;
mod channel;
mod credit;
mod ends;
mod forms;
mod lossy;
mod tasks;
mod waiting;
