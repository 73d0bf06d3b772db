//! The pressure level of a group, as users read it.

/// How short of memory a group is: see [`Group::pressure_level`](crate::Group::pressure_level).
///
/// ```
/// use memcg::PressureLevel;
///
/// assert!(PressureLevel::Normal < PressureLevel::Elevated && PressureLevel::Elevated < PressureLevel::Critical);
/// assert_eq!(PressureLevel::Critical.name(), "critical");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "lowercase")
)]
pub enum PressureLevel {
    /// There is room, and chargers rarely stand still.
    #[default]
    Normal,
    /// Usage is near max, or chargers stand still. A service should shed work that can wait.
    Elevated,
    /// Usage is at max, or chargers stand still for long. A service should take no new work.
    Critical,
}

impl PressureLevel {
    /// Returns the name in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            PressureLevel::Normal => "normal",
            PressureLevel::Elevated => "elevated",
            PressureLevel::Critical => "critical",
        }
    }

    /// The pressure with this number in a group's mark.
    pub(crate) fn of(number: u64) -> PressureLevel {
        // A table: the compiler makes more instructions of a match.
        const OF: [PressureLevel; 4] = [
            PressureLevel::Normal,
            PressureLevel::Elevated,
            PressureLevel::Critical,
            PressureLevel::Critical,
        ];
        OF[number as usize & 3]
    }
}
