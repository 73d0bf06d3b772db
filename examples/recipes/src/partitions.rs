//! librdkafka: partitions that are paused while their group lacks room.
//!
//! Each message is charged until it is worked through. Below `least` bytes of headroom no partition gives messages;
//! they go on above twice of that. A paused consumer is polled, so it stays in its consumer group. The bytes that
//! librdkafka fetches ahead are bounded by its own setting, and charged as a whole.

use std::time::Duration;

use memcg::{Charge, ChargeError, Group};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Message, OwnedMessage};

#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    #[error(transparent)]
    Refused(#[from] ChargeError),
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}

/// A message, with its charge below it.
pub struct Charged {
    pub message: OwnedMessage,
    _charge: Charge,
}

pub struct Paced {
    consumer: BaseConsumer,
    group: Group,
    least: u64,
    paused: bool,
    _ahead: Charge,
}

impl Paced {
    /// Makes a consumer that has fetched at most `ahead` KiB ahead, all partitions together.
    pub fn new(config: &mut ClientConfig, group: &Group, ahead: usize, least: u64) -> Result<Paced, ConsumeError> {
        let charge = group.try_charge(ahead << 10)?;
        let consumer = config.set("queued.max.messages.kbytes", ahead.to_string()).create()?;
        Ok(Paced { consumer, group: group.clone(), least, paused: false, _ahead: charge })
    }

    /// Returns the next message that comes within `time`. It is charged by force: librdkafka has allocated it already.
    pub fn next(&mut self, time: Duration) -> Result<Option<Charged>, KafkaError> {
        self.pace()?;
        let Some(polled) = self.consumer.poll(time) else { return Ok(None) };
        let message = polled?.detach();
        let bytes = message.key().map_or(0, <[u8]>::len) + message.payload().map_or(0, <[u8]>::len);
        Ok(Some(Charged { message, _charge: self.group.force_charge(bytes) }))
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

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    pub fn consumer(&self) -> &BaseConsumer {
        &self.consumer
    }
}
