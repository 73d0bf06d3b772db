//! librdkafka: partitions that are paused while their group lacks room.
//!
//! Each message is charged until it is worked through. Below `least` bytes of headroom no partition
//! gives messages; they go on above twice of that. A paused consumer is polled, so it stays in its
//! consumer group. Settings of librdkafka bound what it fetches ahead. That is charged as a whole.

use std::time::Duration;

use memcg::{Charge, ChargeError, Group};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Message, OwnedMessage};

/// Why there is no consumer.
#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    /// There is no room for what it fetches ahead.
    #[error(transparent)]
    Refused(#[from] ChargeError),
    /// librdkafka refused.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}

/// A message, with its charge below it.
pub struct Charged {
    /// The message.
    pub message: OwnedMessage,
    _charge: Charge,
}

/// A consumer in a group.
pub struct Paced {
    consumer: BaseConsumer,
    group: Group,
    least: u64,
    paused: bool,
    _ahead: Charge,
}

impl Paced {
    /// Makes a consumer that fetches while less than `ahead` KiB are queued, and with a fetch at
    /// most as much. Both are charged. Several brokers may each add a fetch.
    pub fn new(
        config: &mut ClientConfig,
        group: &Group,
        ahead: usize,
        least: u64,
    ) -> Result<Paced, ConsumeError> {
        let charge = group.charge(ahead << 11)?;
        config
            .set("queued.max.messages.kbytes", ahead.to_string())
            .set("fetch.max.bytes", (ahead << 10).to_string());
        let consumer = config.create()?;
        Ok(Paced {
            consumer,
            group: group.clone(),
            least,
            paused: false,
            _ahead: charge,
        })
    }

    /// Returns the next message that comes within `time`. It is charged by force: librdkafka has
    /// allocated it already.
    pub fn next(&mut self, time: Duration) -> Result<Option<Charged>, KafkaError> {
        self.pace()?;
        let Some(polled) = self.consumer.poll(time) else {
            return Ok(None);
        };
        let message = polled?.detach();
        if self.paused {
            // Of a partition that was assigned since.
            self.consumer.pause(&self.consumer.assignment()?)?;
        }
        let bytes = message.key().map_or(0, <[u8]>::len) + message.payload().map_or(0, <[u8]>::len);
        Ok(Some(Charged {
            message,
            _charge: self.group.force_charge(bytes),
        }))
    }

    fn pace(&mut self) -> Result<(), KafkaError> {
        let room = self.group.headroom();
        if !self.paused && room < self.least {
            self.consumer.pause(&self.consumer.assignment()?)?;
            self.paused = true;
        } else if self.paused && room >= 2 * self.least {
            self.consumer.resume(&self.consumer.assignment()?)?;
            self.paused = false;
        }
        Ok(())
    }

    /// Returns true while no partition gives messages.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns the consumer of librdkafka: to subscribe, and to commit.
    pub fn consumer(&self) -> &BaseConsumer {
        &self.consumer
    }
}
