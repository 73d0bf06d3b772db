//! The service: each connection a group below its tenant's, each buffer charged before it is
//! allocated.
//!
//! The protocol: a connection says whose it is (a length of one byte, a name) and is told that it
//! is welcome (one byte). Then come requests, each a length of four bytes and as many bytes; the
//! answer is the same again, once the service has all of it.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memcg::errors::{CreateError, OfflineError};
use memcg::{Bytes, ChargeError, Charged, Group, Limit, Limits, Runtime, StatKey, Unit};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

/// The byte that a connection gets once it has a group.
pub(crate) const WELCOME: u8 = 1;

/// After a failed accept: most likely there are no descriptors, and only time brings some.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

/// A tenant that is held back looks again after that long at the latest.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The limits of a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The most that all connections together may hold: the root's max.
    pub(crate) budget: Limit,
    /// From where on a tenant's connections are not read: the tenant's high.
    pub(crate) high: Limit,
    /// The longest request, and all that one connection may hold: the connection's max.
    pub(crate) request_max: Limit,
    /// Connections beyond that are turned away.
    pub(crate) connections_max: u32,
    /// The time that a request may take, from its length to its last byte; then the connection is
    /// closed.
    pub(crate) patience: Duration,
}

/// Why a connection was closed before its peer did so.
#[derive(Debug, Error)]
pub(crate) enum Closed {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no tenant of that name")]
    UnknownTenant,
    /// There are too many connections, or there is no memory for one more.
    #[error(transparent)]
    NoGroup(#[from] CreateError),
    /// The request is too long, or the tenant goes.
    #[error(transparent)]
    NoMemory(#[from] ChargeError),
    #[error("a request took longer than {0:?}")]
    TooSlow(Duration),
}

/// The items that the service counts beside bytes, in the statistics of the connections' groups. It
/// stays in the tenants' figures when the connections have gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Items {
    pub(crate) connections: StatKey,
    pub(crate) requests: StatKey,
    /// Requests that were not read for a while, their tenant being above its high; and for how
    /// long.
    pub(crate) held_back: StatKey,
    pub(crate) held_back_time: StatKey,
}

pub(crate) struct Service {
    pub(crate) runtime: Runtime,
    pub(crate) items: Items,
    settings: Settings,
    tenants: HashMap<String, Group>,
    /// Names the next connection.
    next: AtomicU64,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

// === impl Service ===

impl Service {
    pub(crate) fn new(tenants: &[&str], settings: Settings) -> Result<Self, Box<dyn Error>> {
        let mut builder = Runtime::builder();
        let items = Items {
            connections: builder.stat("connections", Unit::Events),
            requests: builder.stat("requests", Unit::Events),
            held_back: builder.stat("held_back", Unit::Events),
            held_back_time: builder.stat("held_back_time", Unit::Nanoseconds),
        };
        // The root, the tenants, and a group for each connection.
        let groups_max = settings
            .connections_max
            .saturating_add(tenants.len() as u32 + 1);
        let builder = builder.max(settings.budget).groups_max(groups_max);
        // No credit in advance: a connection charges a few times in its life and would gain
        // nothing, and what idle connections have as credit would count towards high. The audit is
        // for `verify` at the end.
        let runtime = builder
            .batch(Bytes(0))
            .delay_max(LOOK_AGAIN)
            .audit(true)
            .build()?;
        let root = runtime.root();
        let tenant = |&name: &&str| {
            Ok((
                name.to_string(),
                root.create(name, Limits::new().high(settings.high))?,
            ))
        };
        Ok(Self {
            tenants: tenants
                .iter()
                .map(tenant)
                .collect::<Result<_, CreateError>>()?,
            runtime,
            items,
            settings,
            next: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            most_open: AtomicUsize::new(0),
        })
    }

    /// The most connections that had a group at the same time.
    pub(crate) fn most_open(&self) -> usize {
        self.most_open.load(Ordering::Relaxed)
    }

    /// Serves until it is told to stop, then those that it has accepted until they go. Returns how
    /// many were closed before their peers did so.
    pub(crate) async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        mut stop: oneshot::Receiver<()>,
    ) -> usize {
        let mut connections = JoinSet::new();
        let mut closed = 0;
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => drop(connections.spawn(Arc::clone(&self).connection(stream))),
                    Err(error) => {
                        eprintln!("connections: nothing accepted: {error}");
                        sleep(ACCEPT_AGAIN).await;
                    }
                },
                Some(ended) = connections.join_next() => closed += usize::from(!is_fine(ended)),
                _ = &mut stop => break,
            }
        }
        drop(listener);
        while let Ok(Some(ended)) = timeout(self.settings.patience, connections.join_next()).await {
            closed += usize::from(!is_fine(ended));
        }
        // A tenant that is still there is idle. What its task holds goes with it: buffers, charges,
        // the group.
        closed += connections.len();
        connections.shutdown().await;
        closed
    }

    /// Takes the tenants offline, which is refused where one has a connection.
    pub(crate) fn close(self) -> Result<Runtime, OfflineError> {
        self.tenants.values().try_for_each(Group::offline)?;
        Ok(self.runtime)
    }

    /// From the greeting on until the peer has had enough.
    async fn connection(self: Arc<Self>, mut stream: TcpStream) -> Result<(), Closed> {
        stream.set_nodelay(true)?;
        let tenant = self.in_time(self.greeting(&mut stream)).await?;
        let connection = Connection::new(&self, tenant)?;
        stream.write_u8(WELCOME).await?;
        // Between requests there is no limit: an idle connection holds no buffer.
        while let Some(bytes) = next_request(&mut stream).await? {
            self.in_time(connection.answer(&mut stream, bytes)).await?;
        }
        Ok(())
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Closed>>) -> Result<T, Closed> {
        let patience = self.settings.patience;
        timeout(patience, work)
            .await
            .map_err(|_| Closed::TooSlow(patience))?
    }

    /// The tenant of the connection. Until it is known nothing is charged to any tenant: a name is
    /// short, and so is patience.
    async fn greeting(&self, stream: &mut TcpStream) -> Result<&Group, Closed> {
        let mut name = [0; u8::MAX as usize];
        let name = &mut name[..stream.read_u8().await?.into()];
        stream.read_exact(name).await?;
        let name = str::from_utf8(name).map_err(|_| Closed::UnknownTenant)?;
        // Not by its path in the tree: `acme/17` is another tenant's connection.
        self.tenants.get(name).ok_or(Closed::UnknownTenant)
    }
}

/// The length of the next request; `None` once the peer sends no more.
async fn next_request(stream: &mut TcpStream) -> io::Result<Option<u32>> {
    match stream.read_u32().await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Says why where it is not.
fn is_fine(ended: Result<Result<(), Closed>, JoinError>) -> bool {
    let why: Box<dyn Error> = match ended {
        Ok(Ok(())) => return true,
        Ok(Err(closed)) => closed.into(),
        Err(panicked) => panicked.into(),
    };
    eprintln!("connections: a connection was closed: {why}");
    false
}

/// A connection's group: made once it is known whose the connection is, taken offline with this.
struct Connection<'a> {
    service: &'a Service,
    group: Group,
}

// === impl Connection ===

impl<'a> Connection<'a> {
    fn new(service: &'a Service, tenant: &Group) -> Result<Self, CreateError> {
        // Relaxed, here and below: numbers that nothing else depends on.
        let name = service.next.fetch_add(1, Ordering::Relaxed).to_string();
        let group = tenant.create(&name, Limits::new().max(service.settings.request_max))?;
        group.stat_add(service.items.connections, 1);
        let open = service.open.fetch_add(1, Ordering::Relaxed) + 1;
        service.most_open.fetch_max(open, Ordering::Relaxed);
        Ok(Self { service, group })
    }

    async fn answer(&self, stream: &mut TcpStream, bytes: u32) -> Result<(), Closed> {
        let mut buffer = self.buffer(bytes).await?;
        stream.read_exact(&mut buffer).await?;
        stream.write_u32(bytes).await?;
        stream.write_all(&buffer).await?;
        self.group.stat_add(self.service.items.requests, 1);
        Ok(())
    }

    // ANCHOR: buffer
    /// Charged, then allocated.
    async fn buffer(&self, bytes: u32) -> Result<Charged<Vec<u8>>, ChargeError> {
        self.hold_back(bytes.into()).await;
        // If the budget is used up it waits in line. Here as there, whichever tenant waits holds
        // nothing; so a charge that brings the tenant above its high is not delayed itself, but
        // those that come after it are.
        let charge = self.group.charge_async(bytes as usize).undelayed().await?;
        Ok(Charged::new(vec![0; bytes as usize], charge))
    }
    // ANCHOR_END: buffer

    /// Back-pressure: while the tenant is above its high the rest of a request stays in the socket,
    /// its window closes, and the peer stops sending. How long to wait for the next look says the
    /// kernel's formula: it grows with what the tenant is above, and with what is asked for.
    async fn hold_back(&self, bytes: u64) {
        let mut delay = self.group.inspect().high_delay(Bytes(bytes));
        if delay.is_zero() {
            return;
        }
        let began = Instant::now();
        while !delay.is_zero() {
            sleep(delay).await;
            delay = self.group.inspect().high_delay(Bytes(bytes));
        }
        self.group.stat_add(self.service.items.held_back, 1);
        let time = i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX);
        self.group.stat_add(self.service.items.held_back_time, time);
    }
}

impl Drop for Connection<'_> {
    /// However it ends: the peer went, it was closed, its task was aborted or panicked.
    fn drop(&mut self) {
        self.service.open.fetch_sub(1, Ordering::Relaxed);
        // Refused where there are groups below, and a connection makes none.
        let _ = self.group.offline();
    }
}
