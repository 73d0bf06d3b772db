//! A request handler on TCP. A request is a tenant (1 byte), a length (4 bytes) and a body. The
//! buffer of the body is charged to the tenant before it is allocated, with 50 ms of patience; then
//! the answer is "busy".
//!
//! ```text
//! cargo run --example handler
//! ```

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use memcg::{ChargeError, Charged, Group, Limit, Limits, Runtime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_millis(50);
const WORK: Duration = Duration::from_millis(100);

// ANCHOR: buffer
async fn buffer(tenant: &Group, len: usize) -> Result<Charged<Vec<u8>>, ChargeError> {
    let charge = tenant.charge_async(len).timeout(PATIENCE).await?;
    Ok(Charged::new(vec![0; len], charge)) // freed, then uncharged
}
// ANCHOR_END: buffer

/// Serves the one request of a connection.
async fn serve(mut stream: TcpStream, tenants: Arc<[Group]>) -> io::Result<()> {
    let number = stream.read_u8().await?;
    let tenant = tenants
        .get(usize::from(number))
        .ok_or(io::ErrorKind::InvalidData)?;
    let len = stream.read_u32().await?;
    // ANCHOR: serve
    let answer = match buffer(tenant, len as usize).await {
        Ok(mut buffer) => {
            stream.read_exact(&mut buffer).await?;
            tokio::time::sleep(WORK).await;
            format!("sum {}", buffer.iter().copied().map(u64::from).sum::<u64>())
        }
        Err(refused) => {
            // No byte of the body is kept, so it needs no charge.
            tokio::io::copy(&mut (&mut stream).take(len.into()), &mut tokio::io::sink()).await?;
            if refused.is_timeout() {
                "busy".to_owned()
            } else {
                format!("refused: {refused}")
            }
        }
    };
    // ANCHOR_END: serve
    stream.write_all(answer.as_bytes()).await
}

async fn ask(address: SocketAddr, tenant: u8, len: u32) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_u8(tenant).await?;
    stream.write_u32(len).await?;
    stream.write_all(&vec![1; len as usize]).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(format!("tenant {tenant}, {len} bytes: {answer}"))
}

async fn run(tenants: Arc<[Group]>) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&tenants)));
        }
    });
    let requests = [(0, 100_000); 6]
        .into_iter()
        .chain([(1, 100_000), (1, 1_000_000)]);
    let clients: Vec<_> = requests
        .map(|(tenant, len)| tokio::spawn(ask(address, tenant, len)))
        .collect();
    for client in clients {
        println!("{}", client.await??);
    }
    server.abort();
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // Made and dropped outside of the executor, because the drop of the last handle may block.
    let budget = Runtime::builder().max(Limit::mib(1)).audit(true).build()?;
    let limits = Limits::new().max(Limit::kib(256)); // two requests of 100,000 bytes at a time
    let tenants = [
        budget.root().create("acme", limits)?,
        budget.root().create("globex", limits)?,
    ];
    tokio::runtime::Runtime::new()?.block_on(run(Arc::new(tenants)))?;
    println!("{}\n{}", budget.snapshot(), budget.verify());
    assert_eq!(budget.root().live(), 0);
    Ok(())
}
