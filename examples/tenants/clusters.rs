//! The 54 production caches that the tenants are modelled on.
//!
//! J. Yang, Y. Yue, K. V. Rashmi, "A large scale analysis of hundreds of in-memory cache clusters
//! at Twitter", OSDI 2020. Figures of March 2020 from github.com/twitter/cache-trace,
//! `stat/2020Mar.md`, CC-BY-4.0; columns picked and renamed.

/// One cache as its owners measured it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(crate) number: u8,
    /// Mean length of a key and of a value.
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    /// Requests per second, in thousands.
    pub(crate) rate_kqps: f64,
    /// Exponent of the Zipf law of its keys; 0 where there is none or it is not known.
    pub(crate) zipf_alpha: f64,
    /// 0 where it is not known.
    pub(crate) working_set_mb: u32,
    /// Shares of the operations, as published: those below a hundredth are left out.
    pub(crate) operations: &'static str,
}

/// Clusters for which no figures were published.
pub(crate) const WITHOUT_FIGURES: [u8; 1] = [5];

/// All clusters with figures.
#[rustfmt::skip]
pub(crate) const CLUSTERS: [Cluster; 53] = [
    // number, key and value bytes, kqps, alpha, working set in MB, operations
    cluster(1, 80, 267, 11.40, 2.6774, 0, "get:0.99"),
    cluster(2, 21, 68, 12.15, 1.4908, 0, "get:1.00"),
    cluster(3, 19, 120, 1.36, 1.6414, 0, "get:0.99"),
    cluster(4, 67, 2439, 5.26, 1.1004, 0, "get:0.93 set:0.07"),
    cluster(6, 44, 252, 12.61, 1.882, 128, "get:0.98 set:0.02"),
    cluster(7, 17, 1936, 1.62, 1.0666, 85, "get:0.82 set:0.18"),
    cluster(8, 23, 9497, 2.11, 1.7366, 0, "set:0.50 get:0.50"),
    cluster(9, 32, 39, 18.83, 1.6796, 16, "get:0.99"),
    cluster(10, 22, 2333, 0.22, 0.0, 1232, "add:0.50 get:0.50"),
    cluster(11, 24, 170, 4.16, 1.4891, 1751, "get:0.96 add:0.02 gets:0.01 cas:0.01"),
    cluster(12, 44, 1030, 4.36, 0.3048, 986, "set:0.80 get:0.20"),
    cluster(13, 44, 4266, 1.34, 0.4565, 1035, "get:0.38 set:0.62"),
    cluster(14, 96, 414, 5.81, 1.2959, 8732, "get:0.65 delete:0.22 set:0.13"),
    cluster(15, 18, 102, 9.02, 0.0242, 15, "set:1.00"),
    cluster(16, 18, 115, 17.51, 1.7862, 18, "get:0.93 set:0.04 add:0.01"),
    cluster(17, 19, 212, 0.35, 2.1106, 1162, "get:0.99"),
    cluster(18, 18, 37, 26.40, 2.0994, 41, "get:0.96 add:0.01 gets:0.01 cas:0.01"),
    cluster(19, 42, 101, 3.31, 0.735, 3448, "get:0.75 set:0.25"),
    cluster(20, 26, 55, 5.63, 1.3699, 2147, "get:0.96 add:0.03"),
    cluster(21, 25, 1, 2.18, 0.0521, 239, "add:1.00"),
    cluster(22, 54, 4, 3.24, 0.7624, 1682, "get:0.72 incr:0.18 set:0.10"),
    cluster(23, 35, 224, 8.69, 0.274, 91, "set:0.31 get:0.36 incr:0.30 delete:0.02"),
    cluster(24, 32, 699, 5.29, 1.3726, 5071, "get:0.99"),
    cluster(25, 49, 28, 18.97, 0.9929, 327, "get:0.95 add:0.02 gets:0.02 cas:0.02"),
    cluster(26, 122, 1745, 0.25, 0.6299, 30, "get:0.71 set:0.29"),
    cluster(27, 66, 8, 24.55, 1.065, 4372, "get:0.85 set:0.15"),
    cluster(28, 45, 85, 9.05, 1.503, 725, "get:0.91 set:0.03 add:0.03"),
    cluster(29, 36, 799, 10.73, 1.2323, 891, "get:0.86 set:0.13"),
    cluster(30, 22, 689, 3.85, 1.4259, 775, "get:0.99"),
    cluster(31, 41, 15, 2.52, 0.0, 5, "set:0.94 get:0.06"),
    cluster(32, 41, 138, 7.35, 0.0, 74, "set:0.98 get:0.02"),
    cluster(33, 24, 1118, 10.53, 1.354, 1390, "get:0.99 set:0.01"),
    cluster(34, 33, 322, 3.40, 1.1401, 210, "get:0.94 set:0.06"),
    cluster(35, 19, 1796, 3.06, 0.0, 9, "get:0.96 set:0.04"),
    cluster(36, 23, 78, 9.08, 1.2169, 2696, "get:0.93 add:0.04 gets:0.01 cas:0.01"),
    cluster(37, 72, 20134, 4.15, 0.4251, 551, "set:0.37 get:0.63"),
    cluster(38, 41, 185, 2.52, 0.0, 21, "set:0.94 get:0.06"),
    cluster(39, 41, 80, 2.52, 0.0, 12, "set:0.94 get:0.06"),
    cluster(40, 44, 155, 6.26, 0.8551, 1021, "set:0.50 get:0.50"),
    cluster(41, 44, 171, 5.18, 0.8542, 849, "get:0.50 set:0.50"),
    cluster(42, 40, 4703, 6.84, 1.5974, 212, "get:0.96 add:0.04"),
    cluster(43, 44, 304, 14.54, 0.0, 1391, "set:0.50 get:0.50"),
    cluster(44, 25, 22, 9.41, 1.4084, 536, "get:0.98 add:0.01"),
    cluster(45, 10, 120, 0.33, 0.6372, 1046, "add:0.15 get:0.85"),
    cluster(46, 44, 928, 10.47, 0.0, 16437, "set:0.32 get:0.68"),
    cluster(47, 44, 267, 9.54, 2.0637, 434, "get:1.00"),
    cluster(48, 44, 70, 1.84, 0.8191, 4057, "set:0.35 get:0.65"),
    cluster(49, 44, 10658, 1.25, 1.5095, 41, "set:0.43 get:0.57"),
    cluster(50, 18, 67485, 0.24, 1.2816, 153, "get:0.52 set:0.48"),
    cluster(51, 44, 221, 10.40, 1.9745, 258, "get:0.90 set:0.10"),
    cluster(52, 20, 273, 24.25, 1.2117, 12583, "get:0.91 add:0.04 gets:0.02 cas:0.02"),
    cluster(53, 36, 9213, 1.38, 1.2061, 4122, "get:0.89 set:0.03 prepend:0.09"),
    cluster(54, 19, 246, 0.65, 1.611, 457, "get:0.97 set:0.03"),
];

/// One line of the table above, in its order.
#[expect(clippy::too_many_arguments, reason = "a line of a table")]
const fn cluster(
    number: u8,
    key_bytes: u32,
    value_bytes: u32,
    rate_kqps: f64,
    zipf_alpha: f64,
    working_set_mb: u32,
    operations: &'static str,
) -> Cluster {
    Cluster { number, key_bytes, value_bytes, rate_kqps, zipf_alpha, working_set_mb, operations }
}

impl Cluster {
    /// Sorts with the others.
    pub(crate) fn name(&self) -> String {
        name(self.number)
    }
}

/// The name of a cluster in the report.
pub(crate) fn name(number: u8) -> String {
    format!("cluster{number:02}")
}
