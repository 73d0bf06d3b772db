//! Uploads over real connections: hyper's client and curl, HTTP/1.1 with keep-alive and HTTP/2,
//! clients that stop or go in the middle. No sample of usage is above a max, no request is stuck,
//! no other tenant is refused, and all is given back.

mod clients;
mod http2;
mod promises;
mod server;
mod uploads;
