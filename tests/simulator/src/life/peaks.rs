//! Peaks of live bytes that start over.

use memcg::Group;
use memcg::figures::PeakLiveWindow;

use super::Life;
use crate::holds::{Holds, ensure};
use crate::script::{Op, What};

const PEAKS_MAX: usize = 4;

/// A peak, and the most that the twin has seen since it began.
pub(super) struct Peak {
    window: PeakLiveWindow,
    group: usize,
    seen: u64,
}

impl Life {
    pub(super) fn step_peak(&mut self, op: &Op) {
        match op.1 {
            What::Peak(number) => {
                let room = self.peaks.len() < PEAKS_MAX;
                let Some(group) = self.group(number).filter(|_| room) else {
                    return;
                };
                self.keeps = true;
                let used = self.usage_of(group);
                let window = self.on(op, group, |group| group.memory().peak_live_window());
                self.starts_over(window, group, used);
            }
            What::PeakReset(number) => {
                let Some(Peak { window, group, .. }) = self.take_peak(number) else {
                    return;
                };
                let used = self.usage_of(group);
                let window = self.actor(op).run(move || {
                    window.reset();
                    window
                });
                self.starts_over(window, group, used);
            }
            What::PeakDrop(number) => {
                let peak = self.take_peak(number);
                self.actor(op).run(move || drop(peak));
            }
            _ => unreachable!("an operation on peaks"),
        }
    }

    fn take_peak(&mut self, number: u8) -> Option<Peak> {
        let most = self.peaks.len();
        (most > 0).then(|| self.peaks.swap_remove(usize::from(number) % most))
    }

    fn usage_of(&self, group: usize) -> u64 {
        self.handles[group].first().map_or(u64::MAX, Group::usage)
    }

    /// A peak starts from what is live now. Before that so much was used: a thread of the runtime may
    /// have taken some of the credit home meanwhile.
    fn starts_over(&mut self, window: PeakLiveWindow, group: usize, used: u64) {
        self.settle_accounts();
        let live = self.twin.live(group, 0);
        let peak = window.peak();
        let most = self.usage_of(group).max(used);
        let is_alone = self.waiting().next().is_none() && !self.adapters_wait();
        assert!(
            !self.shared.is_quiet()
                || !is_alone
                || peak.min() <= live && live <= peak.max() && peak.max() <= most,
            "a peak that starts at {live}, with {most} used: {peak}"
        );
        self.peaks.push(Peak {
            window,
            group,
            seen: 0,
        });
    }

    /// What is live after an operation was live at one moment.
    pub(super) fn follow_peaks(&mut self) {
        for peak in &mut self.peaks {
            peak.seen = peak.seen.max(self.twin.live(peak.group, 0));
        }
        for group in 0..self.handles.len() {
            if !self.handles[group].is_empty() {
                let live = self.twin.live(group, 0);
                let peak = &mut self.twin.groups[group].peak;
                *peak = live.max(*peak);
            }
        }
    }

    pub(super) fn peaks_hold(&self) -> Holds {
        // Whatever peaks of a while have ended since.
        for (group, handles) in self.handles.iter().enumerate() {
            if let Some(handle) = handles.first() {
                let (ever, seen) = (handle.peak_live(), self.twin.groups[group].peak);
                ensure!(
                    seen <= ever.max(),
                    "{seen} bytes of {handle:?} were live, and their peak is {ever}"
                );
            }
        }
        for Peak {
            window,
            group,
            seen,
        } in &self.peaks
        {
            let peak = window.peak();
            let path = self.twin.path(*group);
            ensure!(
                *seen <= peak.max() && peak.min() <= peak.max(),
                "{seen} bytes of {path} were live, and their peak is {peak}"
            );
            let Some(handle) = self.handles[*group].first() else {
                continue;
            };
            let ever = handle.peak_live();
            ensure!(
                peak.max() <= handle.peak() && *seen <= ever.max() && peak.min() <= ever.max(),
                "a peak of {path} since a while is {peak}, and {ever} ever"
            );
        }
        Ok(())
    }
}
