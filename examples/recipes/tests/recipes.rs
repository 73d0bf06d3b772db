//! The recipes, against the real libraries.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arrow_array::{Int64Array, RecordBatch};
use memcg::{Bytes, Event, Group, Limits, Runtime};
use memcg_examples_recipes::blocks::{self, Blocks};
use memcg_examples_recipes::bodies;
use memcg_examples_recipes::partitions::Paced;
use memcg_examples_recipes::row_groups::{ChargedWriter, WriteError};
use memcg_examples_recipes::stores::{Store, StoreError};
use parquet::arrow::ArrowWriter;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::Consumer;
use rdkafka::message::Message;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};
use slatedb::object_store::memory::InMemory;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn group_of(limits: Limits) -> (Runtime, Group) {
    let runtime = Runtime::builder().audit(true).build().unwrap();
    let group = runtime.root().create("acme", limits).unwrap();
    (runtime, group)
}

fn all_is_back(runtime: &Runtime) {
    assert_eq!(runtime.root().live(), 0);
    assert!(runtime.verify().is_ok(), "{}", runtime.verify());
}

// === parquet ===

const ROWS: i64 = 20_000;

/// Values that no encoding makes small.
fn batch(number: i64) -> RecordBatch {
    let values =
        (0..ROWS).map(|row| (number * ROWS + row).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64));
    RecordBatch::try_from_iter([("value", Arc::new(Int64Array::from_iter_values(values)) as _)])
        .unwrap()
}

/// Returns the row groups of a file of 50 batches, and the most that was charged.
fn write_file(limits: Limits) -> (usize, u64) {
    let (runtime, group) = group_of(limits);
    let mut file = Vec::new();
    let writer = ArrowWriter::try_new(&mut file, batch(0).schema(), None).unwrap();
    let mut writer = ChargedWriter::new(writer, &group).unwrap();
    for number in 0..50 {
        writer.write(&batch(number)).unwrap();
    }
    let written = writer.close().unwrap();
    assert_eq!(written.file_metadata().num_rows(), 50 * ROWS);
    assert!(file.len() as u64 > 50 * 8 * ROWS as u64);
    all_is_back(&runtime);
    let most = group.peak_live().exact().expect("one thread has charged");
    (written.num_row_groups(), most)
}

#[test]
fn row_groups_are_closed_early_above_high() {
    let (groups, most) = write_file(Limits::new());
    assert!(
        groups == 1 && most > 50 * 8 * ROWS as u64,
        "{groups} row groups, {most} bytes"
    );
    let (groups, most) = write_file(Limits::new().high(Bytes(2 * MIB)));
    assert!(
        groups >= 4 && most < 3 * MIB,
        "{groups} row groups, {most} bytes"
    );
}

#[test]
fn row_groups_are_closed_early_before_a_refusal() {
    let (groups, most) = write_file(Limits::new().max(Bytes(2 * MIB)));
    assert!(
        groups >= 4 && most <= 2 * MIB + 256 * 1024,
        "{groups} row groups, {most} bytes"
    );
    let (runtime, group) = group_of(Limits::new().max(1_000));
    let writer = ArrowWriter::try_new(Vec::new(), batch(0).schema(), None).unwrap();
    let mut writer = ChargedWriter::new(writer, &group).unwrap();
    assert!(matches!(
        writer.write(&batch(0)),
        Err(WriteError::Refused(_))
    ));
    assert_eq!((writer.row_groups(), group.live()), (0, 0));
    assert_eq!(writer.close().unwrap().num_row_groups(), 0);
    all_is_back(&runtime);
}

// === fjall ===

#[test]
fn stores_share_one_budget() {
    let runtime = Runtime::builder()
        .audit(true)
        .max(Bytes(8 * MIB))
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let stores = ["acme", "globex"].map(|name| {
        let group = runtime.root().create(name, Limits::new()).unwrap();
        Store::open(&folder.path().join(name), &group, MIB as usize).unwrap()
    });
    let live = |name: &str| runtime.group(&format!("/{name}")).unwrap().live();
    let value = [7; 10_000];
    let fill = |store: &Store, from: u32, to: u32| {
        for key in from..to {
            store.insert(&key.to_be_bytes(), &value).unwrap();
        }
    };
    // One has what the other does not use: 5 MB, more than half.
    fill(&stores[0], 0, 500);
    assert!(
        live("acme") > 5 * MIB && stores[0].buffered() > 4 * MIB,
        "{}",
        stores[0].buffered()
    );
    // The other way: the first one writes its buffer to disk.
    fill(&stores[1], 0, 500);
    assert!(
        live("globex") > 5 * MIB && live("acme") < 3 * MIB,
        "{} {}",
        live("globex"),
        live("acme")
    );
    // fjall lowers its figure a moment after it has written.
    while stores[0].buffered() > MIB {
        thread::yield_now();
    }
    // And back.
    fill(&stores[0], 500, 1_000);
    assert!(live("acme") > 5 * MIB && live("globex") < 3 * MIB);
    assert!(runtime.root().peak() <= 8 * MIB);
    for key in [0_u32, 499, 500, 999] {
        assert_eq!(stores[0].get(&key.to_be_bytes()).unwrap().unwrap(), value);
    }
    // A value that could never fit is refused.
    assert!(matches!(
        stores[1].insert(b"key", &vec![1; 9 << 20]),
        Err(StoreError::Refused(_))
    ));
    drop(stores);
    all_is_back(&runtime);
}

// === SlateDB ===

#[tokio::test(flavor = "multi_thread")]
async fn buffers_and_a_cache_share_one_budget() {
    let runtime = Runtime::builder()
        .audit(true)
        .max(Bytes(8 * MIB))
        .build()
        .unwrap();
    let objects = Arc::new(InMemory::new());
    // Blocks go before buffers: those are below their low.
    let [cached, acme, globex] =
        [("blocks", 0), ("acme", 6 * MIB), ("globex", 6 * MIB)].map(|(name, low)| {
            runtime
                .root()
                .create(name, Limits::new().low(Bytes(low)))
                .unwrap()
        });
    let (cache, asked) = Blocks::new(&cached);
    let stores = [
        blocks::Store::open(objects.clone(), &acme, &cache, 0)
            .await
            .unwrap(),
        blocks::Store::open(objects.clone(), &globex, &cache, 1)
            .await
            .unwrap(),
    ];
    let value = |store: usize, key: u32| [(7 * store as u32 + key) as u8; 10_000];
    let fill = async |store: usize, keys: u32| {
        for key in 0..keys {
            stores[store]
                .put(&key.to_be_bytes(), &value(store, key))
                .await
                .unwrap();
        }
        [&acme, &globex, &cached].map(Group::live)
    };
    let read = async |store: usize| {
        for key in 0..500_u32 {
            let read = stores[store]
                .database
                .get(key.to_be_bytes())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(read[..], value(store, key));
        }
        [&acme, &globex, &cached].map(Group::live)
    };
    const WHOLE: u64 = 500 * 10_000;
    // One buffer has what nothing else uses: more than half.
    let live = fill(0, 500).await;
    assert!(live[0] > WHOLE && live[2] < MIB, "{live:?}");
    // The other way: it is written for another one.
    let live = fill(1, 500).await;
    assert!(live[0] == 0 && live[1] > WHOLE, "{live:?}");
    // The cache takes what is left, and no buffer is written for it.
    let live = read(0).await;
    assert!(live[1] > WHOLE && live[2] > 3_000_000, "{live:?}");
    // The other way: blocks go before a buffer does.
    let live = fill(0, 200).await;
    assert!(
        live[0] > 200 * 10_000 && live[1] > WHOLE && live[2] < 1_500_000,
        "{live:?}"
    );
    // And back: a buffer is written, and the cache has its room.
    let live = fill(0, 300).await;
    assert!(live[1] == 0, "{live:?}");
    let live = read(1).await;
    assert!(
        live[2] > 2_500_000 && live.iter().sum::<u64>() > 7 * MIB,
        "{live:?}"
    );
    // A value that could never fit is refused.
    let refused = stores[1].put(b"key", &vec![1; 9 << 20]).await;
    assert!(
        matches!(refused, Err(blocks::StoreError::Refused(_))),
        "{refused:?}"
    );
    assert!(runtime.root().peak() <= 8 * MIB && runtime.root().forced() == 0);
    for store in stores {
        store.database.close().await.unwrap();
    }
    drop((asked, cache));
    all_is_back(&runtime);
}

// === librdkafka ===

#[test]
fn partitions_are_paused_while_there_is_no_room() {
    let cluster: MockCluster<'_, DefaultProducerContext> = MockCluster::new(1).unwrap();
    cluster.create_topic("rows", 3, 1).unwrap();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers());
    let producer: ThreadedProducer<_> = config.create().unwrap();
    let payload = vec![7; 100_000];
    for number in 0..60 {
        let record = BaseRecord::<(), _>::to("rows")
            .partition(number % 3)
            .payload(&payload);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(PATIENCE).unwrap();

    let (runtime, group) = group_of(Limits::new().max(Bytes(5 * MIB)));
    config.set("group.id", "acme");
    let mut paced = Paced::new(&mut config, &group, 1_024, MIB).unwrap();
    let assign = |paced: &Paced, partitions: &[i32]| {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            list.add_partition_offset("rows", *partition, Offset::Beginning)
                .unwrap();
        }
        paced.consumer().incremental_assign(&list).unwrap();
    };
    assign(&paced, &[0, 1]);
    let mut held = Vec::new();
    let end = Instant::now() + PATIENCE;
    while !paced.is_paused() {
        assert!(Instant::now() < end, "{} messages", held.len());
        held.extend(paced.next(Duration::from_millis(100)).unwrap());
    }
    // Room for 1 MiB is left, and a paused consumer gives nothing.
    assert!(
        held.len() > 10 && held.len() < 40,
        "{} messages",
        held.len()
    );
    for _ in 0..10 {
        assert!(paced.next(Duration::from_millis(50)).unwrap().is_none() && paced.is_paused());
    }
    assert!(group.live() <= 5 * MIB - MIB + 100_000 && group.forced() == 0);
    // A partition that comes meanwhile gives one message, and is paused, too.
    assign(&paced, &[2]);
    let before = held.len();
    for _ in 0..20 {
        held.extend(paced.next(Duration::from_millis(50)).unwrap());
    }
    assert_eq!(held.len(), before + 1);
    // As messages are worked through it goes on, and none is lost.
    let mut seen = held.len();
    held.clear();
    while seen < 60 {
        assert!(Instant::now() < end, "{seen} messages");
        if let Some(next) = paced.next(Duration::from_millis(100)).unwrap() {
            assert_eq!(next.message.payload(), Some(&payload[..]));
            seen += 1;
        }
    }
    assert!(!paced.is_paused());
    drop(paced);
    all_is_back(&runtime);
}

// === hyper ===

#[tokio::test]
async fn a_body_is_charged_until_its_client_has_it() {
    let (runtime, group) = group_of(Limits::new().max(Bytes(48 * MIB)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(bodies::serve(listener, group.clone()));
    let ask = async |len: u64| {
        let mut client = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET /{len} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        client
    };
    // A client that does not read: the socket takes a part, the rest stays charged as a whole.
    let mut slow = ask(32 * MIB).await;
    let mut first = [0; 1_000];
    slow.read_exact(&mut first).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(group.live(), 32 * MIB);
    // Another one has no room, and is told why.
    let mut answer = String::new();
    ask(32 * MIB)
        .await
        .read_to_string(&mut answer)
        .await
        .unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("/acme refused 32 MiB"),
        "{answer}"
    );
    assert_eq!(group.events().get(Event::TimedOut), 1);
    // It reads to the end: all is back.
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() as u64 + 1_000 > 32 * MIB);
    while group.live() > 0 {
        tokio::task::yield_now().await;
    }
    // A client that goes away gives it back, too.
    let gone = ask(32 * MIB).await;
    while group.live() < 32 * MIB {
        tokio::task::yield_now().await;
    }
    drop(gone);
    while group.live() > 0 {
        tokio::task::yield_now().await;
    }
    server.abort();
    all_is_back(&runtime);
}
